//! The examples, which assert what they show; and the way from a refusal to the next lease; and the code of the pages.

mod fence;
mod fleet;
mod pages;
#[cfg(feature = "postgres")]
mod pool;
mod refunds;
mod traces;
mod web_service;
