package dev.tenure;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Works on the items of a queue in so many threads, until it is closed. Each item is acknowledged when its handler returns, and retried
 * if it throws. While nobody answers, it asks again each second.
 *
 * <p>The threads are daemons: a program that does nothing else waits by {@link #join()}.
 */
public final class QueueListener implements AutoCloseable {
    private static final Logger LOG = System.getLogger("dev.tenure");
    private static final Duration WAIT = Duration.ofDays(1);

    private final TenureQueue queue;
    private final TenureQueue.Handler handler;
    private final List<Lane> lanes = new ArrayList<>();
    private volatile boolean isEnding;

    QueueListener(TenureQueue queue, int parallel, TenureQueue.Handler handler) {
        this.queue = queue;
        this.handler = handler;
        for (int i = 0; i < parallel; i++) {
            lanes.add(new Lane());
        }
        lanes.forEach(lane -> lane.thread = Threads.start("tenure-queue-" + queue.name(), lane));
    }

    private final class Lane implements Runnable {
        private Thread thread;
        private boolean isTaking;

        /** Begins to wait for an item, which may be interrupted. False: it ends. */
        private synchronized boolean takes() {
            isTaking = !isEnding;
            return isTaking;
        }

        private synchronized void hasTaken() {
            isTaking = false;
            // It was for the wait, and not for the handler.
            Thread.interrupted();
        }

        synchronized void end() {
            if (isTaking) {
                thread.interrupt();
            }
        }

        @Override
        public void run() {
            while (takes()) {
                Optional<Delivery> taken = Optional.empty();
                try {
                    taken = queue.take(WAIT);
                } catch (InterruptedException e) {
                    // It is told to end.
                } catch (TenureException e) {
                    LOG.log(Level.WARNING, "asks \"{0}\" again in 1 s: {1}", queue.name(), e.getMessage());
                    rest();
                } finally {
                    hasTaken();
                }
                taken.ifPresent(this::work);
            }
        }

        private void rest() {
            try {
                Thread.sleep(1000);
            } catch (InterruptedException e) {
                // It is told to end.
            }
        }

        private void work(Delivery delivery) {
            try (delivery) {
                if (isEnding) {
                    delivery.putBack();
                    return;
                }
                handler.handle(delivery);
                if (!delivery.isOver()) {
                    delivery.ack();
                } else if (delivery.isLost()) {
                    delivery.check();
                }
            } catch (Throwable e) {
                LOG.log(Level.WARNING, "the item " + delivery.item() + " of \"" + queue.name() + "\" is retried", e);
                retry(delivery, e);
                if (e instanceof InterruptedException || Thread.interrupted()) {
                    LOG.log(Level.DEBUG, "an interrupt ends one item, and not its listener");
                }
            }
        }

        private void retry(Delivery delivery, Throwable e) {
            if (delivery.isOver()) {
                return;
            }
            try {
                String text = e.toString();
                delivery.retry(text.substring(0, Math.min(1000, text.length())));
            } catch (TenureException again) {
                LOG.log(Level.DEBUG, "the item comes again after its ttl: {0}", again.getMessage());
            }
        }
    }

    /** Waits until it was closed and its last handler has returned. */
    public void join() throws InterruptedException {
        for (Lane lane : lanes) {
            lane.thread.join();
        }
    }

    /** Takes nothing more, and waits until the handlers that work have returned. */
    @Override
    public void close() {
        isEnding = true;
        lanes.forEach(Lane::end);
        boolean wasInterrupted = false;
        for (Lane lane : lanes) {
            while (lane.thread.isAlive() && lane.thread != Thread.currentThread()) {
                try {
                    lane.thread.join();
                } catch (InterruptedException e) {
                    wasInterrupted = true;
                }
            }
        }
        if (wasInterrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
