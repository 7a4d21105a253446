package dev.tenure.shop;

import dev.tenure.TenureException;
import dev.tenure.examples.NodeIds;
import dev.tenure.spring.FencingToken;
import dev.tenure.spring.Locked;
import java.util.ArrayList;
import java.util.List;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.ApplicationArguments;
import org.springframework.boot.ApplicationRunner;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Lazy;
import org.springframework.dao.DuplicateKeyException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Component;

/** Works without a rest until the application ends, for a test that disturbs it. */
@Component
@ConditionalOnProperty("shop.load")
class Load implements ApplicationRunner {
    private final Load self;
    private final Ledger ledger;
    private final NodeIds ids;
    private final JdbcTemplate jdbc;
    private final String instance;

    Load(@Lazy Load self, Ledger ledger, NodeIds ids, JdbcTemplate jdbc, @Value("${shop.instance}") String instance) {
        this.self = self;
        this.ledger = ledger;
        this.ids = ids;
        this.jdbc = jdbc;
        this.instance = instance;
    }

    @Override
    public void run(ApplicationArguments arguments) {
        start("writes", this::write);
        start("ids", this::makeIds);
    }

    private interface Work {
        void go() throws Exception;
    }

    private static void start(String name, Work work) {
        Thread thread = new Thread(() -> repeat(work), name);
        thread.setDaemon(true);
        thread.start();
    }

    private static void repeat(Work work) {
        for (;;) {
            try {
                work.go();
                Thread.sleep(10);
            } catch (TenureException | Ledger.StaleTokenException e) {
                // What the test asks for: nothing wrong was written.
            } catch (Exception e) {
                System.err.println("shop: " + e);
            }
        }
    }

    private void write() throws Exception {
        self.locked(0);
    }

    @Locked(value = "load/account", waitFor = "5s")
    public void locked(@FencingToken long token) throws Exception {
        ledger.write("load", token);
        // So that a pause often comes between the lock and the write.
        Thread.sleep(20);
        ledger.write("load", token);
    }

    private void makeIds() {
        List<NodeIds.Id> made = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            made.add(ids.next());
        }
        NodeIds.Id last = made.get(made.size() - 1);
        try {
            for (NodeIds.Id id : made) {
                jdbc.update("insert into ids (id) values (?)", id.value());
            }
        } catch (DuplicateKeyException e) {
            jdbc.update("insert into duplicates (text) values (?)", instance + ": " + e.getMessage());
        }
        jdbc.update("insert into held (worker, token, instance, at) values (?, ?, ?, ?)", last.worker(), last.token(), instance, last.millis());
    }
}
