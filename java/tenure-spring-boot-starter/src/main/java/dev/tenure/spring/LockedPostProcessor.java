package dev.tenure.spring;

import java.lang.reflect.Method;
import java.util.Map;
import org.springframework.aop.framework.autoproxy.AbstractBeanFactoryAwareAdvisingPostProcessor;
import org.springframework.aop.support.AopUtils;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.AnnotationUtils;

/**
 * Makes a proxy of each bean with {@link Locked}. Its advice goes before all that is there: so the lock is outside of the transaction,
 * whatever order that has. The processor of {@code @Async} comes after this one, and goes before it.
 */
final class LockedPostProcessor extends AbstractBeanFactoryAwareAdvisingPostProcessor {
    private static final long serialVersionUID = 1;

    private transient LockedInterceptor interceptor;

    LockedPostProcessor(boolean proxiesClasses) {
        setProxyTargetClass(proxiesClasses);
        setBeforeExistingAdvisors(true);
        setOrder(LOWEST_PRECEDENCE - 1);
    }

    @Override
    public void setBeanFactory(BeanFactory factory) {
        super.setBeanFactory(factory);
        interceptor = new LockedInterceptor((ConfigurableBeanFactory) factory);
        advisor = new DefaultPointcutAdvisor(new AnnotationMatchingPointcut(null, Locked.class, true), interceptor);
    }

    @Override
    public Object postProcessAfterInitialization(Object bean, String name) {
        Class<?> type = AopUtils.getTargetClass(bean);
        if (AnnotationUtils.isCandidateClass(type, Locked.class)) {
            Map<Method, Locked> methods = MethodIntrospector.selectMethods(type, LockedPostProcessor::of);
            methods.keySet().forEach(interceptor::read);
        }
        return super.postProcessAfterInitialization(bean, name);
    }

    private static Locked of(Method method) {
        return AnnotatedElementUtils.findMergedAnnotation(method, Locked.class);
    }
}
