package dev.tenure.shop;

import dev.tenure.Delivery;
import dev.tenure.spring.FencingToken;
import dev.tenure.spring.QueueListener;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** Works on items of a queue. */
@Component
class Refunds {
    /** What was done, in all instances of this JVM: the payload, the attempt, the instance. */
    static final List<String> DONE = new CopyOnWriteArrayList<>();

    private final String instance;

    Refunds(@Value("${shop.instance}") String instance) {
        this.instance = instance;
    }

    @QueueListener(value = "${shop.queue:refunds}", concurrency = "3", attemptsMax = "5", ttl = "5s")
    @Transactional
    public void refund(String order, Delivery delivery, @FencingToken long token) throws Exception {
        if (order.startsWith("slow")) {
            Thread.sleep(1500);
        }
        if (order.endsWith("fails once") && delivery.attempt() == 1) {
            throw new IllegalStateException("not yet");
        }
        boolean isRight = token == delivery.token() && TransactionSynchronizationManager.isActualTransactionActive();
        DONE.add(order + " / " + delivery.attempt() + " / " + instance + (isRight ? "" : " / wrong"));
    }
}
