//! The messages between `tenure` and its keeper: one message is one packet.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exit;

/// The largest message: a name of 255 bytes and some numbers fit several times.
const MESSAGE_BYTES_MAX: usize = 2048;
/// The most descriptors that come with a message.
const DESCRIPTORS_MAX: usize = 3;

/// What `tenure` orders the keeper. Times are nanoseconds of `CLOCK_BOOTTIME`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Starts the work. Descriptors come with it, in this order: the work's stdin with `has_input`, its stdout with `has_output`,
    /// and one that shares the client's life, if the engine has one.
    Start {
        /// When the work must be dead.
        deadline: u64,
        /// What is added to its environment.
        environment: Vec<(String, String)>,
        /// Whether a descriptor is the work's stdin.
        has_input: bool,
        /// Whether a descriptor is the work's stdout.
        has_output: bool,
    },
    /// The lease was renewed: the work must be dead only then.
    Deadline(u64),
    /// Passes a signal on to the work.
    Signal(i32),
    /// Asks the work to end, and kills it at a moment of its own.
    Terminate {
        /// When.
        kill_at: u64,
    },
}

/// What the keeper reports to `tenure`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The program runs.
    Started {
        /// Its process, and the group of the work.
        pid: i32,
    },
    /// The program cannot be executed. The keeper has ended.
    NotStarted {
        /// The system's error number.
        errno: i32,
    },
    /// The program was not started, for the lease was over before it could begin. The keeper waits for its next order.
    TooLate,
    /// A process of the work belongs to another user, so that the keeper cannot end it.
    Unkillable {
        /// Which.
        pid: i32,
    },
    /// The program was stopped.
    Stopped {
        /// By which signal.
        signal: i32,
    },
    /// The program has ended, but processes of the work are left and are being ended.
    Lingering,
    /// Nothing of the work is left. The keeper has ended.
    Ended {
        /// How the program ended.
        status: Status,
        /// The work was killed because its time was up.
        is_overdue: bool,
    },
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Status {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl Status {
    /// Returns the exit code as shells have it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Status::Code(code) => code as u8,
            Status::Signal(signal) => exit::of_signal(signal),
        }
    }
}

/// Sends a message.
///
/// # Errors
/// `EPIPE` if the other side is gone; `EAGAIN` if it does not read and `flags` say not to wait for that.
pub(crate) fn send(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let bytes = postcard::to_slice(message, &mut buffer).map_err(|_| Errno::MSGSIZE)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let has_room = control.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(has_room, "a message comes with {DESCRIPTORS_MAX} descriptors at most");
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)).map(drop)
}

/// Receives a message and the descriptors that came with it, without waiting; `None` if the other side is gone.
///
/// # Errors
/// `EAGAIN` if there is no message now.
pub(crate) fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut receive = || {
        rustix::io::retry_on_intr(|| {
            recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)
        })
    };
    let received = match receive() {
        // The other side ended before it had read all that was sent to it. The system reports that once, before the last messages.
        Err(Errno::CONNRESET) => receive(),
        received => received,
    };
    let bytes = received?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if bytes == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..bytes]).map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_message_arrives_whole_with_its_descriptor_and_the_end_is_seen() {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair of sockets");
        let name = "n".repeat(255);
        let order = Order::Start {
            deadline: u64::MAX,
            environment: vec![("TENURE_NAME".to_owned(), name.clone()), ("T".to_owned(), name)],
            has_input: true,
            has_output: true,
        };
        let descriptors = [other.as_fd(), one.as_fd(), one.as_fd()];
        send(&one, &order, &descriptors, SendFlags::empty()).expect("sent");
        send(&one, &Order::Deadline(7), &[], SendFlags::empty()).expect("sent");
        let (first, descriptors) = receive::<Order>(&other).expect("one is there").expect("not the end");
        assert_eq!(format!("{first:?}"), format!("{order:?}"));
        assert_eq!(descriptors.len(), 3);
        let (second, none) = receive::<Order>(&other).expect("one is there").expect("not the end");
        assert!(matches!(second, Order::Deadline(7)));
        assert!(none.is_empty());
        assert_eq!(receive::<Order>(&other).expect_err("none is there"), Errno::AGAIN);
        drop(one);
        drop((first, descriptors));
        assert!(receive::<Order>(&other).expect("no error").is_none());
    }

    #[test]
    fn what_was_sent_last_arrives_though_the_sender_ended_before_it_had_read_all() {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair of sockets");
        send(&one, &Order::Deadline(7), &[], SendFlags::empty()).expect("sent");
        send(&other, &Order::Deadline(8), &[], SendFlags::empty()).expect("sent");
        drop(one);
        let (last, _) = receive::<Order>(&other).expect("no error").expect("not the end yet");
        assert!(matches!(last, Order::Deadline(7)));
        assert!(receive::<Order>(&other).expect("no error").is_none());
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!(Status::Code(3).code(), 3);
        assert_eq!(Status::Signal(9).code(), 137);
        assert_eq!(Status::Signal(15).code(), 143);
    }
}
