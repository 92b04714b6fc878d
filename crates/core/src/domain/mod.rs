//! Pure rules: no I/O, nothing async, no clock and no randomness of its own. What a message is, which state may follow
//! which, what an answer means, how long a text is, whose number it is.

pub mod address;
pub mod event;
pub mod key;
pub mod matching;
pub mod message;
pub mod money;
pub mod outcome;
pub mod receipt;
pub mod retry;
pub mod state;
pub mod text;
