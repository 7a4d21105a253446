//! What a queue says of its items, beside [`Queue`](crate::Queue), [`Push`](crate::Push) and
//! [`Delivery`](crate::Delivery).

pub use tenure_core::engine::queue::{
    CONTEXT_BYTES_MAX, DEDUP_MEMORY, ItemContext, ItemId, ItemState, ItemView, PAYLOAD_BYTES_MAX, Pushed,
    QueueCapability, QueueStats,
};
pub use tenure_core::face::queue::{ATTEMPTS_DEFAULT, PARALLEL_MAX};
