//! The actions of a joystick.

/// What a player can do with a joystick of eight directions and a button. The numbers are ALE's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Action {
    Noop,
    Fire,
    Up,
    Right,
    Left,
    Down,
    UpRight,
    UpLeft,
    DownRight,
    DownLeft,
    UpFire,
    RightFire,
    LeftFire,
    DownFire,
    UpRightFire,
    UpLeftFire,
    DownRightFire,
    DownLeftFire,
}

impl Action {
    /// All of them, in order of their numbers.
    pub const ALL: [Action; 18] = [
        Action::Noop,
        Action::Fire,
        Action::Up,
        Action::Right,
        Action::Left,
        Action::Down,
        Action::UpRight,
        Action::UpLeft,
        Action::DownRight,
        Action::DownLeft,
        Action::UpFire,
        Action::RightFire,
        Action::LeftFire,
        Action::DownFire,
        Action::UpRightFire,
        Action::UpLeftFire,
        Action::DownRightFire,
        Action::DownLeftFire,
    ];

    /// The name in the literature.
    pub fn name(self) -> &'static str {
        match self {
            Action::Noop => "NOOP",
            Action::Fire => "FIRE",
            Action::Up => "UP",
            Action::Right => "RIGHT",
            Action::Left => "LEFT",
            Action::Down => "DOWN",
            Action::UpRight => "UPRIGHT",
            Action::UpLeft => "UPLEFT",
            Action::DownRight => "DOWNRIGHT",
            Action::DownLeft => "DOWNLEFT",
            Action::UpFire => "UPFIRE",
            Action::RightFire => "RIGHTFIRE",
            Action::LeftFire => "LEFTFIRE",
            Action::DownFire => "DOWNFIRE",
            Action::UpRightFire => "UPRIGHTFIRE",
            Action::UpLeftFire => "UPLEFTFIRE",
            Action::DownRightFire => "DOWNRIGHTFIRE",
            Action::DownLeftFire => "DOWNLEFTFIRE",
        }
    }
}
