//! What only the local engine has: two real processes, deaths, forks, damaged and foreign directories.
mod child;
mod death;
mod world;
