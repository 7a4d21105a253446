//! An item on its way into a queue.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tracing::Instrument;

use crate::client::connection::Connection;
use crate::client::trace;
use crate::counts::PushEnd;
use crate::engine::queue::{ItemContext, Push as PushRequest, Pushed};
use crate::error::{Error, ErrorKind, Result};
use crate::face::claimant::show;
use crate::model::claim::{Name, PERIOD_MAX, Period};

/// What is to travel with an item.
enum Context {
    None,
    Text(String),
    /// In the span of the push, when that is there.
    AskedFor(Box<dyn FnOnce() -> Option<String> + Send>),
}

impl Context {
    fn into_text(self) -> Option<String> {
        match self {
            Context::None => None,
            Context::Text(text) => Some(text),
            Context::AskedFor(ask) => ask(),
        }
    }
}

/// A push that has not been sent yet: its settings, then `.await`.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a payload, group, delay, dedup id or context out of range; [`ErrorKind::Unavailable`] if it is not known whether it
/// was pushed; [`ErrorKind::Unsupported`] if the engine has no queues, or takes no more items into this one.
///
/// # Cancel safety
/// Dropped while it is awaited, it may have been pushed or not. With a dedup id it can be pushed again without harm.
///
/// # Cost
/// One round trip, shared by all that is pushed while another is under way.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("push-example").await?;
/// use tenure_core::Push;
///
/// let queue = tenure.queue("refunds");
/// let push: Push = queue.push("order 4711").group("bakery").dedup("refund-90");
/// let pushed = push.await?;
/// # let _ = pushed;
/// # Ok(()) }) }
/// ```
#[must_use = "nothing is pushed before it is awaited"]
pub struct Push {
    connection: Arc<Connection>,
    queue: Result<Name>,
    payload: Arc<[u8]>,
    group: Option<String>,
    delay: Duration,
    dedup: Option<String>,
    context: Context,
    scope: u16,
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the payload: it may be a secret, and long.
        show(f, "Push", &self.queue, &self.connection)
    }
}

impl Push {
    pub(super) fn new(
        connection: &Arc<Connection>,
        (queue, scope): (Result<Name>, u16),
        payload: &[u8],
    ) -> Push {
        let connection = connection.clone();
        Push {
            connection,
            queue,
            payload: payload.into(),
            group: None,
            delay: Duration::ZERO,
            dedup: None,
            context: Context::None,
            scope,
        }
    }

    /// Puts it into a group (1 to 255 bytes): after all that was pushed into that group before. A group needs no set-up, and
    /// costs nothing when it is empty.
    ///
    /// `queue.push("order 4711").group("merchant 17").await?;`
    pub fn group(mut self, group: &str) -> Push {
        self.group = Some(group.to_owned());
        self
    }

    /// Holds it back for so long. What stands behind it in its group waits, too.
    ///
    /// `queue.push("reminder").delay(Duration::from_secs(3600)).await?;`
    pub fn delay(mut self, delay: Duration) -> Push {
        self.delay = delay;
        self
    }

    /// Pushes it once under this id (1 to 255 bytes): a second push is answered with the first one's item, for as long as that is in
    /// the queue and for five minutes at least. Under an id, a push whose answer was lost is repeated by itself.
    ///
    /// `queue.push("order 4711").dedup("order-4711").await?;`
    pub fn dedup(mut self, id: &str) -> Push {
        self.dedup = Some(id.to_owned());
        self
    }

    /// Has a text travel with it, which whoever takes it finds in [`Delivery::context`](crate::Delivery::context): 1 to 128 characters
    /// of printable ASCII, meant for a W3C `traceparent`.
    ///
    /// `queue.push("order 4711").context("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067ab0cd902e7-01").await?;`
    ///
    /// It is in every delivery of the item, also of one that was a dead letter. Of a duplicate it goes nowhere: the item
    /// keeps that of its first push.
    pub fn context(mut self, context: &str) -> Push {
        self.context = Context::Text(context.to_owned());
        self
    }

    /// As [`Push::context`], and asked for in the span of the push, so that a consumer's work can be linked to it. `None`: none.
    /// Where the store keeps none (tables that an older version made), the item is pushed without, by a second round trip.
    ///
    /// `queue.push("order 4711").context_with(|| Some(traceparent(&Span::current()))).await?;`
    pub fn context_with(mut self, context: impl FnOnce() -> Option<String> + Send + 'static) -> Push {
        self.context = Context::AskedFor(Box::new(context));
        self
    }

    async fn send(self) -> Result<Pushed> {
        let (queue, connection, scope) = (self.queue.clone()?, self.connection.clone(), self.scope);
        let span = trace::push(connection.engine(), &queue, self.group.as_deref(), self.payload.len());
        let pushed = self.send_to(queue.clone()).instrument(span.clone()).await;
        let outcome = match &pushed {
            Ok(Pushed { is_duplicate: false, .. }) => PushEnd::Pushed,
            Ok(_) => PushEnd::Duplicate,
            Err(_) => PushEnd::Failed,
        };
        trace::note_pushed(&span, pushed.as_ref().ok().map(|pushed| pushed.item), outcome.as_str());
        connection.shared.with_ledger(|ledger, _| ledger.pushed(scope, &queue, outcome));
        pushed
    }

    async fn send_to(self, queue: Name) -> Result<Pushed> {
        let shared = &self.connection.shared;
        let invalid = |message: String, hint: String| {
            Err(Error::new(ErrorKind::Invalid, "push", message).with_resource(&queue).with_hint(hint))
        };
        shared.check_process()?;
        let most = shared.queues()?.capability().payload_bytes_max;
        if self.payload.len() > most {
            let hint = "keep large data elsewhere, and push where it is".to_owned();
            return invalid(format!("the payload has more than {most} bytes"), hint);
        }
        if self.delay > PERIOD_MAX {
            let hint = "the longest is ten years".to_owned();
            return invalid(format!("a delay of {} is out of range", Period(self.delay)), hint);
        }
        let named = |text: Option<&String>, what| {
            let name = text.map(|text| Name::of_what(text, "push", what)).transpose();
            name.map_err(|error| error.with_resource(&queue))
        };
        let group = named(self.group.as_ref(), "group")?;
        let dedup = named(self.dedup.as_ref(), "dedup id")?;
        let may_go_without = matches!(self.context, Context::AskedFor(_));
        let context = self.context.into_text().map(|text| ItemContext::new(&text)).transpose();
        let context = context.map_err(|error| error.with_resource(&queue))?;
        let (payload, delay) = (self.payload, self.delay);
        let mut request = PushRequest { queue, group, payload, delay, dedup, context };
        if !may_go_without || request.context.is_none() {
            return shared.push(request).await;
        }
        match shared.push(request.clone()).await {
            // Whoever traces a program may not break it: nobody said that this item must carry a context.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                request.context = None;
                shared.push(request).await
            }
            pushed => pushed,
        }
    }
}

impl IntoFuture for Push {
    type Output = Result<Pushed>;
    type IntoFuture = BoxFuture<'static, Result<Pushed>>;

    fn into_future(self) -> BoxFuture<'static, Result<Pushed>> {
        Box::pin(self.send())
    }
}
