"""Writes what the Atari protocol gives on ale-py, with Pillow's resize, as `golden/atari_traces.json` has it.

    pip install ale-py==0.12.1 pillow numpy
    python crates/envs/tests/make_atari_traces.py OUT.json [--steps TRAIN,TEST,LIMIT] [--limit FRAMES] [--noop-seed N] [--action-seed N] [GAME ...]

    IRIS_ATARI_TRACES=$PWD/OUT.json cargo test --release -p envs --features atari atari_traces
"""

import argparse
import json
import pathlib
import re
import struct
import zlib

import ale_py
import numpy as np
from PIL import Image

GAMES = """Alien Amidar Assault Asterix BankHeist BattleZone Boxing Breakout ChopperCommand CrazyClimber DemonAttack Freeway
Frostbite Gopher Hero Jamesbond Kangaroo Krull KungFuMaster MsPacman Pong PrivateEye Qbert RoadRunner Seaquest UpNDown""".split()


class Lcg:
    def __init__(self, state):
        self.state = state

    def draw(self, n):
        self.state = (self.state * 1103515245 + 12345) & 0x7FFFFFFF
        return (self.state >> 16) % n


class Game:
    """Raw frames: resized, with a time limit, and no-ops after a reset."""

    def __init__(self, title, noop_max, limit, noops):
        self.ale = ale_py.ALEInterface()
        self.ale.setInt("random_seed", 0)
        self.ale.setFloat("repeat_action_probability", 0.0)
        rom = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", title).lower().replace("up_ndown", "up_n_down")
        self.ale.loadROM(pathlib.Path(ale_py.__file__).parent / "roms" / f"{rom}.bin")
        self.actions = self.ale.getMinimalActionSet()
        self.noop_max, self.limit, self.noops = noop_max, limit, noops

    def frame(self):
        image = Image.fromarray(self.ale.getScreenRGB()).resize((64, 64), Image.Resampling.BILINEAR)
        return np.asarray(image)

    def step(self, action):
        reward = self.ale.act(self.actions[action])
        self.elapsed += 1
        return reward, self.ale.game_over() or self.elapsed >= self.limit

    def begin(self):
        self.ale.reset_game()
        self.elapsed = 0

    def reset(self):
        self.begin()
        for _ in range(1 + self.noops.draw(self.noop_max)):
            if self.step(0)[1]:
                self.begin()
        return self.frame()


class Skip:
    """Four frames a step, the maximum over the last two, and optionally an end with every life."""

    def __init__(self, game, episodic):
        self.game, self.episodic, self.over = game, episodic, True
        self.last = np.zeros((2, 64, 64, 3), np.uint8)

    def play(self, action):
        total = 0
        for i in range(4):
            reward, done = self.game.step(action)
            total += reward
            if i >= 2:
                self.last[i - 2] = self.game.frame()
            if done:
                break
        return self.last.max(0), total, done

    def step(self, action):
        frame, reward, self.over = self.play(action)
        lives, done = self.game.ale.lives(), self.over
        if self.episodic and 0 < lives < self.lives:
            done = True
        self.lives = lives
        return frame, reward, done

    def reset(self):
        frame = self.game.reset() if self.over or not self.episodic else self.play(0)[0]
        self.lives = self.game.ale.lives()
        return frame


def trace(title, train, limit, steps, noop_seed, action_seed):
    env = Skip(Game(title, 30 if train else 1, limit, Lcg(noop_seed)), train)
    actions, count = Lcg(action_seed), len(env.game.actions)
    crcs, crc, every, episodes, total = [], 0, [], 0, 0.0

    def record(frame, reward, end):
        nonlocal crc
        crcs.append(zlib.crc32(np.ascontiguousarray(frame).tobytes()))
        crc = zlib.crc32(struct.pack("<IfB", crcs[-1], reward, end), crc)
        if len(crcs) % 100 == 0:
            every.append(f"{crc:08x}")

    record(env.reset(), 0, 0)
    for _ in range(steps):
        frame, reward, end = env.step(actions.draw(count))
        record(frame, reward, end)
        total += reward
        if end:
            episodes += 1
            record(env.reset(), 0, 0)
    return {
        "actions": count,
        "steps": steps,
        "records": len(crcs),
        "first_frame_crc": f"{crcs[0]:08x}",
        "crc_every_100": every,
        "final_crc": f"{crc:08x}",
        "episodes": episodes,
        "total_reward": total,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("games", nargs="*", default=GAMES)
    parser.add_argument("--steps", default="600,300,400")
    parser.add_argument("--limit", type=int, default=1003)
    parser.add_argument("--noop-seed", type=int, default=777)
    parser.add_argument("--action-seed", type=int, default=4242)
    args = parser.parse_args()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    modes = [("train", True, 20_000), ("test", False, 108_000), (f"train_limit_{args.limit}", True, args.limit)]
    games = {}
    for title in args.games:
        games[title] = {
            name: trace(title, train, limit, int(steps), args.noop_seed, args.action_seed)
            for (name, train, limit), steps in zip(modes, args.steps.split(","))
        }
        print(title, flush=True)
    with open(args.out, "w") as file:
        json.dump({"noop_seed": args.noop_seed, "action_seed": args.action_seed, "games": games}, file, indent=0)


if __name__ == "__main__":
    main()
