//! Steps per second of Atari games on one core, emulation and preprocessing:
//! `cargo run --release -p envs --features atari --example atari_speed [GAME ...]`

use envs::{Game, atari, steps_per_second};

fn main() -> Result<(), envs::EnvError> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names = atari::GAMES.iter().map(|game| game.name.to_string()).collect();
    }
    for name in names {
        let game = Game::find(&name)?;
        let best = (0..3)
            .map(|_| steps_per_second(game, 64, 2000))
            .try_fold(0.0, |best, s| s.map(|s| f64::max(best, s)))?;
        println!("{:<22} {best:6.0} steps/s, {:6.0} raw frames/s", game.name, 4.0 * best);
    }
    Ok(())
}
