// The part of ALE that a game needs, as C functions. Nothing here can end the program: ALE's own interface, which exits when
// a ROM or a setting is unknown, is not used, and no C++ exception leaves a function.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "ale/common/ColourPalette.hpp"
#include "ale/common/Log.hpp"
#include "ale/emucore/Console.hxx"
#include "ale/emucore/Deserializer.hxx"
#include "ale/emucore/MD5.hxx"
#include "ale/emucore/OSystem.hxx"
#include "ale/emucore/Props.hxx"
#include "ale/emucore/Random.hxx"
#include "ale/emucore/Serializer.hxx"
#include "ale/emucore/Settings.hxx"
#include "ale/emucore/System.hxx"
#include "ale/environment/ale_screen.hpp"
#include "ale/environment/stella_environment.hpp"
#include "ale/games/RomSettings.hpp"
#include "ale/games/Roms.hpp"
#include "zlib.h"

// The ROM that is being loaded on this thread.
struct RomReader {
  const uint8_t* bytes;
  size_t left;
};
static thread_local RomReader rom_to_load{nullptr, 0};

gzFile gzopen(const char*, const char*) { return rom_to_load.bytes ? &rom_to_load : nullptr; }

int gzread(gzFile rom, void* bytes, unsigned count) {
  const size_t taken = std::min<size_t>(count, rom->left);
  std::memcpy(bytes, rom->bytes, taken);
  rom->bytes += taken;
  rom->left -= taken;
  return static_cast<int>(taken);
}

int gzclose(gzFile) { return Z_OK; }

// The parts of a running console. Each refers to those above it, and they are taken down from the last to the first.
struct IrisAle {
  ale::stella::OSystem system;
  ale::stella::Settings settings{&system};
  std::unique_ptr<ale::RomSettings> game;
  std::unique_ptr<ale::StellaEnvironment> environment;
  // The console's random numbers just after it was switched on. Every game that is begun draws some of them.
  std::string random_numbers;
};

static void load(IrisAle& self, const char* name, int seed, int frame_skip, float sticky) {
  self.settings.setInt("random_seed", seed);
  self.settings.setInt("frame_skip", frame_skip);
  self.settings.setFloat("repeat_action_probability", sticky);
  self.settings.validate();
  self.system.create();
  if (!self.system.createConsole(name)) throw std::runtime_error("the ROM does not make a console");
  self.system.colourPalette().setPalette("standard", self.system.console().getFormat());
  self.game.reset(ale::buildRomRLWrapper(name, self.system.console().properties().get(ale::stella::Cartridge_MD5)));
  if (!self.game) throw std::runtime_error("the game has no rules in ALE");
  self.game->modifyEnvironmentSettings(self.settings);
  self.environment = std::make_unique<ale::StellaEnvironment>(&self.system, self.game.get());
  self.environment->reset();
  ale::stella::Serializer saved;
  self.system.console().system().rng().saveState(saved);
  self.random_numbers = saved.get_str();
}

// Runs `body`; 0 when it ends well, else 1 with the reason in `error`.
template <typename Body>
static int guarded(char* error, size_t size, Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    std::snprintf(error, size, "%s", e.what());
  } catch (...) {
    std::snprintf(error, size, "unknown C++ exception");
  }
  return 1;
}

extern "C" {

// The MD5 by which ALE knows a ROM, as 32 digits; `digits` has room for a closing zero.
int iris_ale_md5(const uint8_t* rom, size_t size, char* digits, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    std::snprintf(digits, 33, "%s", ale::stella::MD5(rom, static_cast<uint32_t>(size)).c_str());
  });
}

// A console with this ROM in it, switched on. `name` is the ROM's in ALE.
int iris_ale_new(const uint8_t* rom, size_t size, const char* name, int seed, int frame_skip, float sticky,
                 IrisAle** out, char* error, size_t error_size) {
  static std::once_flag quiet;
  return guarded(error, error_size, [&] {
    std::call_once(quiet, [] { ale::Logger::setMode(ale::Logger::Error); });
    auto self = std::make_unique<IrisAle>();
    rom_to_load = {rom, size};
    load(*self, name, seed, frame_skip, sticky);
    rom_to_load = {nullptr, 0};
    *out = self.release();
  });
}

void iris_ale_free(IrisAle* self) { delete self; }

// Begins a game as if `games` others had been begun since the console was switched on.
int iris_ale_begin(IrisAle* self, unsigned games, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    ale::stella::System& system = self->system.console().system();
    ale::stella::Deserializer saved(self->random_numbers);
    system.rng().loadState(saved);
    for (unsigned i = 0; i < games; i++) system.reset();
    self->environment->reset();
  });
}

// Begins a game after those that really were begun, as ALE itself does: for the tests to compare with.
int iris_ale_reset(IrisAle* self, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { self->environment->reset(); });
}

// Starts the random numbers of sticky actions anew.
void iris_ale_seed(IrisAle* self, uint32_t seed) { self->environment->getEnvironmentRNG().seed(seed); }

int iris_ale_act(IrisAle* self, int action, int* reward, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    *reward = self->environment->act(static_cast<ale::Action>(action), ale::PLAYER_B_NOOP, 1.0f, 0.0f);
  });
}

// The actions that do something in this game; `actions` has room for 18. Their number, or -1.
int iris_ale_actions(IrisAle* self, int* actions) {
  int count = -1;
  char ignored[1];
  guarded(ignored, sizeof ignored, [&] {
    const ale::ActionVect minimal = self->game->getMinimalActionSet();
    if (minimal.size() > 18) return;
    std::copy(minimal.begin(), minimal.end(), actions);
    count = static_cast<int>(minimal.size());
  });
  return count;
}

int iris_ale_lives(IrisAle* self) { return self->game->lives(); }

int iris_ale_game_over(const IrisAle* self) { return self->environment->isGameTerminal(); }

size_t iris_ale_height(const IrisAle* self) { return self->environment->getScreen().height(); }

size_t iris_ale_width(const IrisAle* self) { return self->environment->getScreen().width(); }

// The screen's colours as numbers, row by row: valid until the next call that changes the console.
const uint8_t* iris_ale_screen(const IrisAle* self) { return self->environment->getScreen().getArray(); }

// The colour of a number, 0xRRGGBB.
uint32_t iris_ale_colour(const IrisAle* self, uint8_t number) {
  return const_cast<IrisAle*>(self)->system.colourPalette().getRGB(number);
}

}  // extern "C"
