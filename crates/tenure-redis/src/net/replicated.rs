//! Commands that replicas should acknowledge, on a connection of their own.
//!
//! `WAIT` blocks its connection for half a second when replicas are down, and all that is behind it. So what comes
//! while one is under way goes out together afterwards, with one `WAIT` for all of it (it covers whatever the
//! connection has written so far). Thus no call waits for more than two of them.

use std::sync::Mutex;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::error::Fault;
use crate::net::wire::{Wire, lock};

/// How long replicas have to acknowledge. Two of these, and what the server rounds them up by (100 ms each), fit
/// into the time of a call.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the answers to a group may take.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

/// The commands of one connection that are waiting to be sent.
#[derive(Default)]
pub(crate) struct Line(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    members: Vec<Member>,
    /// Whether a task is sending groups.
    is_sending: bool,
}

struct Member {
    command: Cmd,
    is_asking: bool,
    replicas: u8,
    reply: oneshot::Sender<Result<(Value, u32), Fault>>,
}

impl Line {
    /// Sends a command with the next group, and returns the answer and how many replicas acknowledged.
    pub(crate) async fn execute(
        &self,
        wire: &Wire,
        deadline: Instant,
        command: Cmd,
        is_asking: bool,
        replicas: u8,
    ) -> Result<(Value, u32), Fault> {
        let (reply, answer) = oneshot::channel();
        let joined_at = Instant::now();
        {
            let mut waiting = lock(&self.0);
            waiting.members.push(Member { command, is_asking, replicas, reply });
            if !waiting.is_sending {
                waiting.is_sending = true;
                // In a task of its own, so that a caller that gives up takes no other caller's answer with it.
                tokio::spawn(send_groups(wire.clone()));
            }
        }
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // The task ends without an answer only with the runtime.
            Ok(Err(_)) | Err(_) => {
                Err(Fault::Silent { server: wire.server().to_owned(), after: joined_at.elapsed() })
            }
        }
    }

    fn next(&self) -> Vec<Member> {
        let mut waiting = lock(&self.0);
        waiting.is_sending = !waiting.members.is_empty();
        std::mem::take(&mut waiting.members)
    }
}

async fn send_groups(wire: Wire) {
    loop {
        let members = wire.line().next();
        if members.is_empty() {
            return;
        }
        send(&wire, members).await;
    }
}

async fn send(wire: &Wire, members: Vec<Member>) {
    let mut commands = Pipeline::with_capacity(2 * members.len() + 1);
    let mut replicas = 0;
    let mut replies = Vec::with_capacity(members.len());
    for member in members {
        if member.is_asking {
            commands.cmd("ASKING");
        }
        // Behind the `ASKING`, if there is one.
        replies.push((commands.len(), member.reply));
        commands.add_command(member.command);
        replicas = replicas.max(member.replicas);
    }
    commands.cmd("WAIT").arg(replicas).arg(ACKNOWLEDGE_TIMEOUT.as_millis() as u64);
    let answers = wire.send_all(Instant::now() + ANSWER_TIMEOUT, &commands, 0).await;
    let mut answers = match answers {
        Ok(answers) => answers,
        Err(fault) => {
            // A caller that is gone does not mind.
            return replies.into_iter().for_each(|(_, reply)| drop(reply.send(Err(fault.clone()))));
        }
    };
    let acknowledged = match answers.pop() {
        // A refusal to wait is not a refusal of the commands, which have been executed by now.
        Some(Value::Int(count)) => u32::try_from(count).unwrap_or(0),
        _ => 0,
    };
    for (at, reply) in replies {
        let answer = answers.get_mut(at).map(std::mem::take).unwrap_or_default();
        drop(reply.send(wire.checked(answer).map(|value| (value, acknowledged))));
    }
}
