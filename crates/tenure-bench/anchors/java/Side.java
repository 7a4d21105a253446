package anchors;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.stream.Collectors;
import java.util.stream.LongStream;

/** One side of the comparison in a process of its own: {@code compare.py} says what its arguments and its lines are. */
final class Side {
    /** What all workers have done. Written under the lock that all want, or by each worker for itself. */
    private static final class Tally {
        private final AtomicLongArray holds;
        /** Since when a worker waits, in nanoseconds; 0: it does not. */
        private final AtomicLongArray asked;
        private final AtomicLongArray longest;
        private volatile int last = -1;
        private volatile long changes;

        Tally(int workers) {
            holds = new AtomicLongArray(workers);
            asked = new AtomicLongArray(workers);
            longest = new AtomicLongArray(workers);
        }

        void asks(int worker) {
            asked.set(worker, System.nanoTime());
        }

        @SuppressWarnings("NonAtomicOperationOnVolatileField")
        void holds(int worker) {
            long waited = System.nanoTime() - asked.getAndSet(worker, 0);
            longest.accumulateAndGet(worker, waited, Math::max);
            holds.incrementAndGet(worker);
            if (last != worker) {
                last = worker;
                changes++;
            }
        }

        /** What there is now. Waits that still go on count as far as they have come. */
        String count() {
            long now = System.nanoTime();
            long most = 0;
            for (int i = 0; i < holds.length(); i++) {
                long since = asked.get(i);
                most = Math.max(most, Math.max(longest.getAndSet(i, 0), since == 0 ? 0 : now - since));
            }
            String each = LongStream.range(0, holds.length()).mapToObj(i -> "" + holds.get((int) i)).collect(Collectors.joining(","));
            return "{\"holds\":[" + each + "],\"changes\":" + changes + ",\"longest_ms\":" + most / 1e6 + "}";
        }
    }

    private Side() {}

    public static void main(String[] args) throws Exception {
        String work = args[1];
        int workers = Integer.parseInt(args[2]);
        Ways.Client client = Ways.connect(args[0], args[4], Duration.ofMillis(Long.parseLong(args[3])), workers);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        if (work.equals("hold")) {
            Ways.Way way = client.of(args[5]);
            System.out.println("ready");
            input.readLine();
            way.take();
            System.out.println("held");
            end(input);
        }
        Tally tally = new Tally(workers);
        List<Thread> threads = new ArrayList<>();
        for (int worker = 0; worker < workers; worker++) {
            Ways.Way way = client.of(work.equals("changes") ? args[5] : args[5] + "/" + worker);
            int number = worker;
            threads.add(new Thread(() -> run(way, number, tally)));
        }
        threads.forEach(Thread::start);
        System.out.println("ready");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(tally.count());
        }
        // Whoever waits has nothing to say any more.
        Runtime.getRuntime().halt(0);
    }

    private static void run(Ways.Way way, int worker, Tally tally) {
        try {
            for (;;) {
                tally.asks(worker);
                AutoCloseable held = way.take();
                tally.holds(worker);
                held.close();
            }
        } catch (Exception e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void end(BufferedReader input) throws IOException {
        while (input.readLine() != null) {
            // Nothing is asked of who holds.
        }
        Runtime.getRuntime().halt(0);
    }
}
