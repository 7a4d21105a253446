//! Where the state lives: directories, the gate in front of a store, the files of LMDB.

pub(crate) mod default_place;
pub(crate) mod directory;
pub(crate) mod environment;
pub(crate) mod fork;
pub(crate) mod gate;
pub(crate) mod room;
