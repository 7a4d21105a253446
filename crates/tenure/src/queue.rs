//! What a queue says of its items, beside [`Queue`](crate::Queue), [`Push`](crate::Push) and
//! [`Delivery`](crate::Delivery).

pub use tenure_core::queue::ATTEMPTS_DEFAULT;
pub use tenure_core::queue::contract::{
    DEDUP_MEMORY, ItemId, ItemState, ItemView, PAYLOAD_BYTES_MAX, Pushed, QueueCapability, QueueStats,
};
