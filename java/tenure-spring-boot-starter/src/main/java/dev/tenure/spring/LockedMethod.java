package dev.tenure.spring;

import dev.tenure.Lease;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Parameter;
import java.time.Duration;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.expression.BeanFactoryResolver;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.ParameterNameDiscoverer;
import org.springframework.expression.Expression;
import org.springframework.expression.ParserContext;
import org.springframework.expression.common.CompositeStringExpression;
import org.springframework.expression.spel.standard.SpelExpressionParser;

/** What is said of a method with {@link Locked}, read once. */
final class LockedMethod {
    private static final ParameterNameDiscoverer NAMES = new DefaultParameterNameDiscoverer();
    private static final SpelExpressionParser PARSER = new SpelExpressionParser();

    private final Method method;
    private final ConfigurableBeanFactory beans;
    private final Expression[] name;
    /** Null: for as long as it takes. */
    final Duration wait;
    /** Null: as the application says. */
    final Duration ttl;

    LockedMethod(Method method, Locked locked, ConfigurableBeanFactory beans) {
        this.method = method;
        this.beans = beans;
        int modifiers = method.getModifiers();
        if (Modifier.isPrivate(modifiers) || Modifier.isStatic(modifiers) || Modifier.isFinal(modifiers)) {
            throw new IllegalStateException("@Locked has no effect on a private, static or final method: " + method);
        }
        Expression whole = PARSER.parseExpression(beans.resolveEmbeddedValue(locked.value()), ParserContext.TEMPLATE_EXPRESSION);
        name = whole instanceof CompositeStringExpression parts ? parts.getExpressions() : new Expression[] {whole};
        wait = duration(locked.waitFor());
        ttl = duration(locked.ttl());
        for (Parameter parameter : method.getParameters()) {
            Class<?> type = parameter.getType();
            if (parameter.isAnnotationPresent(FencingToken.class) && type != long.class && type != Long.class) {
                throw new IllegalStateException("@FencingToken is for a parameter of type long: " + method);
            }
        }
    }

    private Duration duration(String text) {
        String resolved = beans.resolveEmbeddedValue(text);
        return resolved == null || resolved.isBlank() ? null : DurationStyle.detectAndParse(resolved);
    }

    /** The name of the lock of a call. */
    String name(Object target, Object[] arguments) {
        MethodBasedEvaluationContext context = new MethodBasedEvaluationContext(target, method, arguments, NAMES);
        context.setBeanResolver(new BeanFactoryResolver(beans));
        StringBuilder text = new StringBuilder();
        for (Expression part : name) {
            String value = part.getValue(context, String.class);
            if (value == null || value.isEmpty()) {
                // Calls that have nothing to do with each other would share a lock.
                throw new IllegalArgumentException("#{" + part.getExpressionString() + "} in the name of the lock of " + method
                        + " is null or empty (names of parameters need the compiler's option -parameters)");
            }
            text.append(value);
        }
        return text.toString();
    }

    /** The arguments, with the lease and its token where the method asks for them. */
    Object[] arguments(Object[] given, Lease lease) {
        Object[] arguments = given.clone();
        Parameter[] parameters = method.getParameters();
        for (int i = 0; i < parameters.length; i++) {
            if (parameters[i].getType() == Lease.class) {
                arguments[i] = lease;
            } else if (parameters[i].isAnnotationPresent(FencingToken.class)) {
                arguments[i] = lease.token();
            }
        }
        return arguments;
    }
}
