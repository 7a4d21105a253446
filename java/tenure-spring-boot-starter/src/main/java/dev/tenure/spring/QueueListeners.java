package dev.tenure.spring;

import dev.tenure.Delivery;
import dev.tenure.Tenure;
import dev.tenure.TenureQueue;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Parameter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.BeanFactoryAware;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.SmartLifecycle;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.AnnotationUtils;

/** Finds methods with {@link QueueListener}, and has them called from when the application has started until it ends. */
final class QueueListeners implements BeanPostProcessor, BeanFactoryAware, Ordered, SmartLifecycle {
    private record Endpoint(QueueListener settings, TenureQueue.Handler handler) {}

    private final List<Endpoint> endpoints = new ArrayList<>();
    private List<dev.tenure.QueueListener> running = List.of();
    private ConfigurableListableBeanFactory beans;

    @Override
    public void setBeanFactory(BeanFactory factory) {
        beans = (ConfigurableListableBeanFactory) factory;
    }

    /** After those that make proxies: the methods are called through them. */
    @Override
    public int getOrder() {
        return LOWEST_PRECEDENCE;
    }

    @Override
    public Object postProcessAfterInitialization(Object bean, String name) {
        Class<?> type = AopUtils.getTargetClass(bean);
        if (AnnotationUtils.isCandidateClass(type, QueueListener.class)) {
            Map<Method, QueueListener> methods = MethodIntrospector.selectMethods(
                    type, (Method method) -> AnnotatedElementUtils.findMergedAnnotation(method, QueueListener.class));
            methods.forEach((method, settings) -> add(bean, name, method, settings));
        }
        return bean;
    }

    private void add(Object bean, String name, Method method, QueueListener settings) {
        if (beans.containsBeanDefinition(name) && !beans.isSingleton(name)) {
            throw new IllegalStateException("@QueueListener is for beans of which there is one: " + method);
        }
        Method callable = AopUtils.selectInvocableMethod(method, bean.getClass());
        callable.setAccessible(true);
        List<Function<Delivery, Object>> arguments = new ArrayList<>();
        for (Parameter parameter : method.getParameters()) {
            arguments.add(argument(parameter, method));
        }
        endpoints.add(new Endpoint(settings, delivery -> call(bean, callable, arguments, delivery)));
    }

    private static Function<Delivery, Object> argument(Parameter parameter, Method method) {
        Class<?> type = parameter.getType();
        if (type == Delivery.class) {
            return delivery -> delivery;
        } else if (type == String.class) {
            return Delivery::text;
        } else if (type == byte[].class) {
            return Delivery::payload;
        } else if (type == long.class && parameter.isAnnotationPresent(FencingToken.class)) {
            return Delivery::token;
        }
        throw new IllegalStateException(
                "a method with @QueueListener takes a Delivery, a String, a byte[] or a long with @FencingToken: " + method);
    }

    private static void call(Object bean, Method method, List<Function<Delivery, Object>> arguments, Delivery delivery) throws Exception {
        try {
            method.invoke(bean, arguments.stream().map(argument -> argument.apply(delivery)).toArray());
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof Exception thrown) {
                throw thrown;
            }
            throw e;
        }
    }

    @Override
    public synchronized void start() {
        Tenure tenure = endpoints.isEmpty() ? null : beans.getBean(Tenure.class);
        List<dev.tenure.QueueListener> started = new ArrayList<>();
        for (Endpoint endpoint : endpoints) {
            QueueListener settings = endpoint.settings();
            TenureQueue queue = tenure.queue(text(settings.value()));
            if (!text(settings.ttl()).isBlank()) {
                queue = queue.ttl(DurationStyle.detectAndParse(text(settings.ttl())));
            }
            if (!text(settings.attemptsMax()).isBlank()) {
                queue = queue.attemptsMax(Integer.parseInt(text(settings.attemptsMax())));
            }
            started.add(queue.listen(Integer.parseInt(text(settings.concurrency())), endpoint.handler()));
        }
        running = started;
    }

    private String text(String setting) {
        return beans.resolveEmbeddedValue(setting);
    }

    @Override
    public void stop() {
        List<Thread> closing = new ArrayList<>();
        for (dev.tenure.QueueListener listener : take()) {
            Thread thread = new Thread(listener::close, "tenure-queue-stop");
            thread.start();
            closing.add(thread);
        }
        try {
            for (Thread thread : closing) {
                thread.join();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Waits elsewhere, so that the application waits only as long as it says. */
    @Override
    public void stop(Runnable isStopped) {
        Thread thread = new Thread(
                () -> {
                    stop();
                    isStopped.run();
                },
                "tenure-queues-stop");
        thread.setDaemon(true);
        thread.start();
    }

    private synchronized List<dev.tenure.QueueListener> take() {
        List<dev.tenure.QueueListener> taken = running;
        running = List.of();
        return taken;
    }

    @Override
    public synchronized boolean isRunning() {
        return !running.isEmpty();
    }
}
