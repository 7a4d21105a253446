package dev.tenure.spring;

import dev.tenure.Lease;
import dev.tenure.LostException;
import dev.tenure.TenureLock;
import java.lang.reflect.Method;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.ProxyMethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.core.ReactiveAdapter;
import org.springframework.core.ReactiveAdapterRegistry;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.util.ClassUtils;

/** Takes the lock of a method with {@link Locked} around each call. */
final class LockedInterceptor implements MethodInterceptor {
    private static final boolean HAS_TRANSACTIONS = ClassUtils.isPresent(
            "org.springframework.transaction.support.TransactionSynchronizationManager", LockedInterceptor.class.getClassLoader());
    /** What the calls of a thread hold, the innermost first. */
    private static final ThreadLocal<Deque<Lease>> HELD = ThreadLocal.withInitial(ArrayDeque::new);

    private final ConfigurableBeanFactory beans;
    private final Map<Method, LockedMethod> methods = new ConcurrentHashMap<>();

    LockedInterceptor(ConfigurableBeanFactory beans) {
        this.beans = beans;
    }

    /** Throws {@link LostException} if one of the leases is lost under which this thread works. No round trip. */
    static void checkHeld() {
        HELD.get().forEach(Lease::check);
    }

    /** Reads what is said of a method: at the start of the application, so that what is wrong is told there. */
    LockedMethod read(Method method) {
        return methods.computeIfAbsent(
                method, read -> new LockedMethod(read, AnnotatedElementUtils.findMergedAnnotation(read, Locked.class), beans));
    }

    @Override
    public Object invoke(MethodInvocation invocation) throws Throwable {
        Object target = invocation.getThis();
        Class<?> type = target == null ? invocation.getMethod().getDeclaringClass() : AopUtils.getTargetClass(target);
        Method method = AopUtils.getMostSpecificMethod(invocation.getMethod(), type);
        LockedMethod locked = read(method);
        String name = locked.name(target, invocation.getArguments());
        refuse(name, method);
        Lease lease = acquire(name, locked, method);
        Deque<Lease> held = HELD.get();
        held.push(lease);
        try {
            ((ProxyMethodInvocation) invocation).setArguments(locked.arguments(invocation.getArguments(), lease));
            Object result = invocation.proceed();
            refuseUnfinished(result, method);
            end(lease);
            return result;
        } catch (Throwable thrown) {
            endAfter(thrown, lease);
            throw thrown;
        } finally {
            held.remove(lease);
        }
    }

    private static void refuse(String name, Method method) {
        if (HELD.get().stream().anyMatch(lease -> lease.name().equals(name))) {
            throw new IllegalStateException("this thread holds \"" + name + "\", and it is not re-entrant: " + method);
        }
        if (HAS_TRANSACTIONS && TransactionSynchronizationManager.isActualTransactionActive()) {
            throw new IllegalStateException("a transaction runs already, and \"" + name
                    + "\" would be another's before it is committed: begin it under the lock, in or below " + method);
        }
    }

    private Lease acquire(String name, LockedMethod locked, Method method) throws InterruptedException {
        TenureLock lock = beans.getBean(Locks.class).mutex(name);
        if (locked.ttl != null) {
            lock = lock.ttl(locked.ttl);
        }
        try {
            return locked.wait == null ? lock.acquire() : lock.acquire(locked.wait);
        } catch (InterruptedException e) {
            if (Arrays.asList(method.getExceptionTypes()).contains(InterruptedException.class)) {
                throw e;
            }
            Thread.currentThread().interrupt();
            CancellationException cancelled = new CancellationException("interrupted while it waited for \"" + name + "\"");
            cancelled.initCause(e);
            throw cancelled;
        }
    }

    /** What works on after the method has returned would do so without the lock. */
    private static void refuseUnfinished(Object result, Method method) {
        boolean isUnfinished = result instanceof Future<?> future && !future.isDone();
        if (result != null && !(result instanceof Future<?>)) {
            ReactiveAdapter adapter = ReactiveAdapterRegistry.getSharedInstance().getAdapter(result.getClass());
            isUnfinished = adapter != null;
        }
        if (isUnfinished) {
            throw new IllegalStateException("the work would go on after its lock is released: " + method + " returned " + result.getClass());
        }
    }

    private static void end(Lease lease) {
        if (lease.isLost()) {
            lease.check();
        }
        lease.close();
    }

    private static void endAfter(Throwable thrown, Lease lease) {
        try {
            end(lease);
        } catch (LostException lost) {
            if (lost != thrown) {
                thrown.addSuppressed(lost);
            }
        }
    }
}
