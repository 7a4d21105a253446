<?php

/**
 * A client of `tenure serve` for PHP 8.1 or newer with curl, in one file without other dependencies: locks, slots, one load for all, and queues.
 *
 *     require 'Tenure.php';
 *     $tenure = Tenure\Tenure::connect('unix:/run/tenure.sock');
 *     $tenure->mutex('billing/4711')->block(5, fn (Tenure\Lease $lease) => charge($lease->token()));
 *
 * What it keeps to (docs/operating/serve.md, "What a client does"):
 *
 * - A deadline is counted from when the answered request was sent. Each look at a lease compares it with a clock that goes on while the
 *   machine sleeps. A deadline that has passed is never moved.
 * - A claim has one id, and the same request is repeated until its answer is final. An id that is given up is released.
 *
 * What PHP cannot: it has no threads, so nothing renews a lease while other code runs. A lease is renewed
 *
 * - by `$lease->keep()` or `$tenure->keep()`, which costs nothing until a third of the ttl is over: call it in each turn of a loop;
 * - in `block()` and `run()`, each second, where pcntl is there (the command line, not FPM) and nobody else uses its alarm. One call of C (a slow query)
 *   keeps the alarm waiting, and `sleep()` returns early;
 * - while this client itself waits: for a lock, for an item, between two attempts.
 *
 * Otherwise choose a ttl that is longer than the work. Either way `check()` says whether it is lost, and `token()` goes to whatever is written to.
 *
 * Periods are seconds, and may have fractions.
 */

declare(strict_types=1);

namespace Tenure;

/** What went wrong, by `kind`: see docs/guides/node-and-php.md. */
class TenureException extends \RuntimeException
{
    /** Whether a copy of the request was sent before, and not answered: it may have been done. */
    public bool $isRepeated = false;

    public function __construct(
        public readonly string $kind,
        string $text,
        public readonly ?string $hint = null,
        public readonly ?string $resource = null,
        public readonly ?string $requestId = null,
        ?\Throwable $cause = null,
    ) {
        $about = $resource === null || str_contains($text, "\"$resource\"") ? '' : " (\"$resource\")";
        parent::__construct($text . $about . ($hint === null ? '' : ": $hint"), 0, $cause);
    }

    /** Reads a problem document (RFC 9457). Null: it is not one of tenure's. */
    public static function of(mixed $problem): ?self
    {
        $kind = is_array($problem) && is_string($problem['kind'] ?? null) ? match ($problem['kind']) {
            'lost', 'finished', 'busy', 'unavailable', 'conflict', 'not_found', 'invalid', 'unsupported', 'elsewhere', 'internal' => $problem['kind'],
            'overloaded', 'rate', 'too_slow' => 'unavailable',
            'method_not_allowed', 'too_large', 'unsupported_media_type' => 'invalid',
            'unauthorized', 'forbidden' => 'refused',
            default => null,
        } : null;
        if ($kind === null) {
            return null;
        }
        $text = fn (string $name): ?string => is_string($problem[$name] ?? null) ? $problem[$name] : null;
        $said = $text('detail') ?? $text('title') ?? $kind;
        return $kind === 'lost'
            ? new LostException($said, $text('hint'), $text('resource'), $text('request_id'))
            : new self($kind, $said, $text('hint'), $text('resource'), $text('request_id'));
    }
}

/** The lease has ended without its user: stop the work. */
final class LostException extends TenureException
{
    public function __construct(string $text, ?string $hint = null, ?string $resource = null, ?string $requestId = null, ?\Throwable $cause = null)
    {
        parent::__construct('lost', $text, $hint, $resource, $requestId, $cause);
    }
}

/** Others hold it for longer than that: nothing is held. */
final class WaitTimeoutException extends TenureException
{
    public function __construct(string $name, float $wait)
    {
        parent::__construct('timeout', "others held it for $wait s", null, $name);
    }
}

/**
 * The outcome of one request is not known.
 *
 * @internal
 */
final class Unanswered extends \Exception
{
    public function __construct(string $text, public readonly ?TenureException $problem = null, public readonly float $retryAfter = 0)
    {
        parent::__construct($text);
    }

    public function asUnavailable(?string $resource): TenureException
    {
        $hint = $this->problem === null ? 'is `tenure serve` there, and its store?' : $this->problem->hint;
        return new TenureException('unavailable', $this->getMessage(), $hint, $resource, null, $this);
    }
}

/**
 * Seconds that go on while the machine sleeps: the monotonic clock, set right by `/proc/uptime` where the clock of the day has run away from it.
 *
 * @internal
 */
final class Clock
{
    private static ?self $only = null;
    private float $slept = 0;
    private float $ahead;
    private ?float $uptimeAhead;

    private function __construct()
    {
        $this->ahead = microtime(true) - self::monotonic();
        $this->uptimeAhead = self::uptime();
    }

    public static function now(): float
    {
        self::$only ??= new self();
        return self::$only->read();
    }

    private static function monotonic(): float
    {
        return hrtime(true) / 1e9;
    }

    private function read(): float
    {
        $gained = microtime(true) - self::monotonic() - $this->ahead;
        if (abs($gained) > 0.020) {
            $this->ahead += $gained;
            $uptime = $this->uptimeAhead === null ? null : self::uptime();
            // Without it a clock of the day that ran ahead is believed: a lease that ends too early is no harm.
            $slept = $uptime === null ? $this->slept + max(0, $gained) : $uptime - $this->uptimeAhead;
            // It has hundredths of a second, and two readings may be off by two of them.
            if ($uptime === null || $slept > $this->slept + 0.050) {
                $this->slept = max($this->slept, $slept + 0.025);
            }
        }
        return self::monotonic() + $this->slept;
    }

    /** By how much uptime is ahead of the monotonic clock; null where there is none. */
    private static function uptime(): ?float
    {
        for ($attempt = 0; $attempt < 10; $attempt++) {
            $before = self::monotonic();
            $text = @file_get_contents('/proc/uptime');
            if ($text === false) {
                return null;
            }
            // A pause between both would look like sleep.
            if (self::monotonic() - $before < 0.005) {
                return (float) $text - $before;
            }
        }
        return null;
    }
}

/**
 * An answer of success, and when its request was sent.
 *
 * @internal
 */
final class Reply
{
    public bool $isRepeated = false;

    public function __construct(public readonly int $status, public readonly mixed $json, public readonly float $sent)
    {
    }

    public function whole(string $name): int
    {
        return self::wholeOf($this->json, $name);
    }

    public static function wholeOf(mixed $fields, string $name): int
    {
        if (!is_array($fields) || !is_int($fields[$name] ?? null) || $fields[$name] < 0) {
            throw new Unanswered('an answer that is not understood');
        }
        return $fields[$name];
    }

    /** A field of bytes, which is text where it can be, and else in base64 under another name. */
    public static function bytesOf(mixed $fields, string $name): string
    {
        $bytes = $fields[$name] ?? base64_decode((string) ($fields["{$name}_base64"] ?? '*'), true);
        if (!is_string($bytes)) {
            throw new Unanswered('an answer that is not understood');
        }
        return $bytes;
    }
}

/**
 * How long to wait before a request is repeated: longer each time, and not the same for all.
 *
 * @internal
 */
final class Backoff
{
    private float $next = 0.020;

    public function next(?Unanswered $unanswered = null): float
    {
        $pause = $this->next / 2 * (1 + mt_rand() / mt_getrandmax());
        $this->next = min(1.0, $this->next * 2);
        return max($pause, $unanswered?->retryAfter ?? 0);
    }

    public function reset(): void
    {
        $this->next = 0.020;
    }
}

/**
 * A grant, as this client may believe in it. Whoever sees its deadline pass first ends it for all, and nothing revives it.
 *
 * @internal
 */
final class Hold
{
    /** @var list<array{callable, LostException}> callbacks whose time has come */
    private static array $toTell = [];
    private string $state = 'held';
    private ?LostException $loss = null;
    private float $deadline;
    private float $countedFrom;
    private array $callbacks = [];
    private int $pid;
    public float $ttlSeen = 0;
    public float $renewAt;
    /** Whether the client knows that it is lost. */
    public bool $isReaped = false;

    public function __construct(
        public readonly string $name,
        public readonly string $claim,
        public readonly int $token,
        public readonly ?int $slot,
        public readonly bool $isDelivery,
        float $sent,
        int $expiresMs,
    ) {
        $this->pid = getmypid();
        $this->count($sent, $expiresMs);
        $this->renewAfter($this->ttlSeen / 3);
    }

    private function count(float $sent, int $expiresMs): void
    {
        // No ttl is longer than a day.
        $seconds = min($expiresMs / 1000, 864_000.0);
        $this->countedFrom = $sent;
        $this->ttlSeen = max($this->ttlSeen, $seconds);
        // The clocks of the server and of this machine do not run alike.
        $this->deadline = $sent + $seconds - $seconds / 100 - 0.002;
    }

    /** On a grid, so that those of one ttl are renewed by one request. */
    public function renewAfter(float $pause): void
    {
        $grain = 2 ** floor(log(max(0.001, $pause / 8), 2));
        $this->renewAt = floor((Clock::now() + $pause) / $grain) * $grain;
    }

    public function deadline(): float
    {
        return $this->deadline;
    }

    /** The answer to a renewal that was sent then. */
    public function renewed(float $sent, int $expiresMs): void
    {
        // An answer that was overtaken by a later one says less.
        if ($this->isHeld() && $sent >= $this->countedFrom) {
            $this->count($sent, $expiresMs);
            $this->isHeld();
        }
    }

    /** Why it is lost; null if it is held, or was released. */
    public function loss(): ?LostException
    {
        if ($this->state === 'held' && Clock::now() >= $this->deadline) {
            $this->lose('not renewed in time');
        } elseif ($this->state === 'held' && !$this->isOwn()) {
            $this->lose('it is the parent process that holds it');
        }
        return $this->loss;
    }

    /** False in a child that was forked: the lease is its parent's, which goes on with it. */
    public function isOwn(): bool
    {
        return getmypid() === $this->pid;
    }

    public function isHeld(): bool
    {
        return $this->loss() === null && $this->state === 'held';
    }

    /** Ends it without its user. */
    public function lose(string $why, ?TenureException $cause = null): void
    {
        if ($this->state !== 'held') {
            return;
        }
        $this->state = 'lost';
        $this->loss = new LostException("the lease was lost: $why", $cause?->hint, $this->name, $cause?->requestId, $cause);
        foreach ($this->callbacks as $callback) {
            self::$toTell[] = [$callback, $this->loss];
        }
        $this->callbacks = [];
    }

    /** Calls whom a loss concerns: not in the middle of something, since what a callback throws must not break that. */
    public static function tell(): void
    {
        while (($next = array_shift(self::$toTell)) !== null) {
            [$callback, $loss] = $next;
            $callback($loss);
        }
    }

    /** Its user lets go. True: it was held until now. */
    public function letGo(): bool
    {
        if (!$this->isHeld()) {
            return false;
        }
        $this->state = 'released';
        $this->callbacks = [];
        return true;
    }

    public function onLost(callable $callback): void
    {
        if ($this->loss() !== null) {
            self::$toTell[] = [$callback, $this->loss];
        } elseif ($this->state === 'held') {
            $this->callbacks[] = $callback;
        }
    }
}

/** A client of `tenure serve`. One for each process: keep it. Nothing is sent before something is asked for. */
final class Tenure
{
    /** The server gives up after 5 s. */
    private const ANSWER_MAX = 5.5;
    /** How long a release, or the end of a client, waits for answers. */
    private const RELEASE_MAX = 2.0;
    /** What the server takes in one request. */
    private const BATCH_MAX = 256;
    /** Releases that are repeated. What does not fit ends at its ttl. */
    private const RELEASES_MAX = 10_000;

    private string $base;
    private array $options;
    /** Requests under way, and connections that are kept. */
    private ?\CurlMultiHandle $multi = null;
    private int $pid;
    /** @var array<int, \Closure> what is done with an answer, by the id of its request */
    private array $then = [];
    /** @var array<int, array{\CurlHandle, float, float, array}> by the same: the request, when it was sent, until when it is waited for, headers */
    private array $underWay = [];
    /** @var array<string, Hold> by claim */
    private array $holds = [];
    /** @var array<string, true> claims that are being renewed */
    private array $renewing = [];
    /** @var list<array{string, string, ?array, float, float}> requests that end what was given up: until when, and not before */
    private array $releases = [];
    private bool $isReleasing = false;
    private ?Backoff $releaseBackoff = null;
    private bool $isClosed = false;
    private bool $hasShutdown = false;
    private bool $isBusy = false;

    private function __construct(string $url, ?string $token, private readonly float $patience, array $tls)
    {
        if ($token !== null && !preg_match('/^[A-Za-z0-9_-]+$/D', $token)) {
            throw new TenureException('invalid', 'the token has other characters than letters, digits, - and _');
        }
        $parts = parse_url($url);
        $isHttp = is_array($parts) && in_array($parts['scheme'] ?? '', ['http', 'https'], true);
        $isPlain = $isHttp && isset($parts['host']) && !isset($parts['query']) && !isset($parts['user']);
        if (!$isPlain && !str_starts_with($url, 'unix:')) {
            // Its text could show what is in the URL.
            throw new TenureException('invalid', 'the URL of the server is not understood', 'http://host:port, https://host:port or unix:/path');
        }
        $this->base = $isPlain ? rtrim($url, '/') : 'http://localhost';
        $headers = ['Accept: application/json', 'Content-Type: application/json', 'Expect:'];
        if ($token !== null) {
            $headers[] = "Authorization: Bearer $token";
        }
        $this->options = [CURLOPT_HTTPHEADER => $headers, CURLOPT_NOSIGNAL => true, CURLOPT_CONNECTTIMEOUT_MS => 2_000] + $tls;
        // A lock is no web page: no proxy of the environment, unless it is asked for.
        $this->options += [CURLOPT_PROXY => ''];
        if (!$isPlain) {
            $this->options[CURLOPT_UNIX_SOCKET_PATH] = substr($url, strlen('unix:'));
        }
        $this->pid = getmypid();
    }

    /**
     * A client of the server at `http://host:port`, `https://host:port` or `unix:/path/of/socket`.
     *
     * @param ?string $token by which the server knows this program
     * @param float $patience for how long everybody may be silent before a call fails as `unavailable`
     * @param array<int, mixed> $tls options of curl, such as CURLOPT_CAINFO
     */
    public static function connect(string $url, ?string $token = null, float $patience = 15.0, array $tls = []): self
    {
        return new self($url, $token, $patience, $tls);
    }

    /** One may hold it at a time. Settings, in seconds: `ttl` (30), `maxHold`, `minHold`, `lockDelay`; and `label`, `floor`. */
    public function mutex(string $name, mixed ...$settings): Lock
    {
        return new Lock($this, $name, Lock::fields($settings));
    }

    /** Many may read. */
    public function readLock(string $name, mixed ...$settings): Lock
    {
        return new Lock($this, $name, ['kind' => 'rw_lock', 'exclusive' => false] + Lock::fields($settings));
    }

    /** One may write, when nobody reads. */
    public function writeLock(string $name, mixed ...$settings): Lock
    {
        return new Lock($this, $name, ['kind' => 'rw_lock', 'exclusive' => true] + Lock::fields($settings));
    }

    /** So many may hold it at a time. All who name it say the same capacity. */
    public function semaphore(string $name, int $capacity, int $weight = 1, mixed ...$settings): Lock
    {
        return new Lock($this, $name, ['kind' => 'semaphore', 'capacity' => $capacity, 'weight' => $weight] + Lock::fields($settings));
    }

    /** Numbers from 0 on, each held by one at a time: `$lease->slot()`. */
    public function slotPool(string $name, int $slots, mixed ...$settings): Lock
    {
        return new Lock($this, $name, ['kind' => 'slot_pool', 'capacity' => $slots] + Lock::fields($settings));
    }

    /** A value that one loads for all, and that is fresh for so long. */
    public function singleFlight(string $key, float $fresh, mixed ...$settings): SingleFlight
    {
        return new SingleFlight($this, new Lock($this, $key, Lock::fields($settings) + ['unless_fresh' => true]), $fresh);
    }

    /** Work in line. Settings, in seconds: `ttl`, `interval`, `groupInterval`; and `attemptsMax`. */
    public function queue(string $name, mixed ...$settings): Queue
    {
        return new Queue($this, $name, $settings);
    }

    /**
     * The lease that another process has detached (`$lease->detach()`), by its name and claim: one round trip. Nobody has renewed it meanwhile.
     *
     * @throws LostException if it has ended
     */
    public function restore(string $name, string $claim): Lease
    {
        $until = Clock::now() + $this->patience;
        $path = '/v1/claims/' . rawurlencode($claim) . '/renew';
        do {
            $reply = $this->repeat('POST', $path, ['name' => $name], $name, $until - Clock::now());
            if (($reply->json['state'] ?? null) !== 'held' || ($reply->json['claim'] ?? null) !== $claim) {
                throw new LostException('it is not held', null, $name);
            }
            $slot = is_int($reply->json['slot'] ?? null) ? $reply->json['slot'] : null;
            $hold = new Hold($name, $claim, $reply->whole('token'), $slot, false, $reply->sent, $reply->whole('expires_in_ms'));
            // An answer that came too late says nothing; another may.
        } while (!$hold->isHeld() && Clock::now() < $until);
        return new Lease($this, $this->hold($hold));
    }

    /**
     * Renews what is due, all in one request, and releases what was given up. Without a round trip if nothing is due. It throws nothing: what is
     * lost says so itself.
     */
    public function keep(): void
    {
        if ($this->isBusy) {
            // An alarm in the middle of this client: it renews itself while it waits.
            return;
        }
        $this->guard(function (): void {
            $this->startDue();
            do {
                // Until each renewal has its answer, or it is too late for it.
                $this->turn($this->renewing === [] ? 0.0 : 1.0);
            } while ($this->renewing !== []);
            $this->reap();
        });
    }

    /** Has what it holds be lost, and releases it: for 2 s at most; the rest ends at its ttl. The client is of no use afterwards. */
    public function close(): void
    {
        if (getmypid() === $this->pid) {
            $this->guard(function (): void {
                foreach ($this->holds as $hold) {
                    // First nobody believes in it, then others may have it.
                    $hold->lose('the client was closed');
                    $hold->isReaped = true;
                    $this->giveUp($hold);
                }
                $this->holds = [];
                $this->drain();
            });
        }
        $this->isClosed = true;
    }

    /** At the end of the program, however it ends but by a signal. */
    private function shutdown(): void
    {
        if (getmypid() !== $this->pid) {
            return;
        }
        $this->isBusy = true;
        foreach ($this->holds as $hold) {
            if ($hold->letGo()) {
                $this->giveUp($hold);
            }
        }
        $this->holds = [];
        $this->drain();
    }

    private function drain(): void
    {
        $until = Clock::now() + self::RELEASE_MAX;
        while (($this->releases !== [] || $this->isReleasing) && Clock::now() < $until) {
            $this->startDue();
            $this->turn(min(0.05, max(0.001, $until - Clock::now())));
        }
    }

    /** Keeps the alarm out of what it would disturb. */
    private function guard(\Closure $work): mixed
    {
        if ($this->isBusy) {
            return $work();
        }
        if (getmypid() !== $this->pid) {
            // A child that was forked has connections and requests of its own; its parent goes on with these.
            $this->pid = getmypid();
            [$this->multi, $this->underWay, $this->then, $this->renewing] = [null, [], [], []];
            [$this->holds, $this->releases, $this->isReleasing] = [[], [], false];
        }
        $this->isBusy = true;
        try {
            return $work();
        } finally {
            $this->isBusy = false;
            Hold::tell();
        }
    }

    /** @internal Renews what was granted from now on. */
    public function hold(Hold $hold): Hold
    {
        if ($this->isClosed) {
            throw new TenureException('unavailable', 'the client is closed', null, $hold->name);
        }
        $this->holds[$hold->claim] = $hold;
        $this->atTheEnd();
        return $hold;
    }

    private function atTheEnd(): void
    {
        if (!$this->hasShutdown) {
            $this->hasShutdown = true;
            register_shutdown_function(fn () => $this->shutdown());
        }
    }

    /** @internal Renews it no longer. */
    public function forget(Hold $hold): void
    {
        unset($this->holds[$hold->claim]);
    }

    /** @internal */
    public function release(Hold $hold): bool
    {
        $this->forget($hold);
        try {
            $path = self::releasePath($hold->name, $hold->claim);
            $reply = $this->repeat('DELETE', $path, null, $hold->name, self::RELEASE_MAX);
            // After a copy that was not answered, "no" means that it was that copy.
            return ($reply->json['released'] ?? null) === true || $reply->isRepeated;
        } catch (TenureException $error) {
            $this->giveUp($hold);
            throw $error;
        }
    }

    /** @internal */
    public function giveUp(Hold $hold): void
    {
        if ($hold->isDelivery) {
            $this->later('POST', "/v1/deliveries/{$hold->claim}/return", ['queue' => $hold->name], $hold->ttlSeen);
        } else {
            $this->withdraw($hold->name, $hold->claim, $hold->ttlSeen);
        }
    }

    /** @internal Ends a claim, wherever it is: at the next turn of this client, and again until it is answered or has ended by itself. */
    public function withdraw(string $name, string $claim, float $for): void
    {
        $this->later('DELETE', self::releasePath($name, $claim), null, $for);
    }

    private function later(string $method, string $path, ?array $body, float $for): void
    {
        $this->atTheEnd();
        if (count($this->releases) < self::RELEASES_MAX) {
            $this->releases[] = [$method, $path, $body, Clock::now() + $for, 0.0];
        }
    }

    /** @internal */
    public static function releasePath(string $name, string $claim): string
    {
        return "/v1/claims/$claim?name=" . rawurlencode($name);
    }

    /** @internal */
    public function patience(): float
    {
        return $this->patience;
    }

    /** @internal Repeats what may be done twice until it is answered. */
    public function repeat(string $method, string $path, ?array $body, ?string $resource, ?float $for = null): Reply
    {
        $until = Clock::now() + ($for ?? $this->patience);
        $backoff = new Backoff();
        $isRepeated = false;
        for (;;) {
            try {
                $reply = $this->once($method, $path, $body, max(0.001, min(self::ANSWER_MAX, $until - Clock::now())));
                $reply->isRepeated = $isRepeated;
                return $reply;
            } catch (TenureException $error) {
                $error->isRepeated = $isRepeated;
                throw $error;
            } catch (Unanswered $unanswered) {
                $isRepeated = true;
                $pause = $backoff->next($unanswered);
                if (Clock::now() + $pause >= $until) {
                    throw $unanswered->asUnavailable($resource);
                }
                $this->pause($pause);
            }
        }
    }

    /** @internal Waits; what is held is renewed meanwhile. */
    public function pause(float $seconds): void
    {
        $this->guard(function () use ($seconds): void {
            $until = Clock::now() + $seconds;
            while (($left = $until - Clock::now()) > 0) {
                $this->startDue();
                $this->turn(min($left, 0.05));
            }
        });
    }

    /** @internal Sends once, and waits for the answer; what is held is renewed meanwhile. */
    public function once(string $method, string $path, ?array $body, float $answerMax): Reply
    {
        return $this->guard(function () use ($method, $path, $body, $answerMax): Reply {
            $found = null;
            $this->begin($method, $path, $body, $answerMax, function (Reply|Unanswered|TenureException $answer) use (&$found): void {
                $found = $answer;
            });
            while ($found === null) {
                $this->startDue();
                $this->turn(0.25);
            }
            if ($found instanceof \Throwable) {
                throw $found;
            }
            return $found;
        });
    }

    /** Begins to send, and hands what came of it to somebody. */
    private function begin(string $method, string $path, ?array $body, float $answerMax, \Closure $then): void
    {
        $this->multi ??= curl_multi_init();
        $request = curl_init($this->base . $path);
        $id = spl_object_id($request);
        curl_setopt_array($request, $this->options + [
            CURLOPT_CUSTOMREQUEST => $method,
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_HEADERFUNCTION => function ($request, string $line) use ($id): int {
                if (str_contains($line, ':')) {
                    [$name, $value] = explode(':', $line, 2);
                    $this->underWay[$id][3][strtolower(trim($name))] = trim($value);
                }
                return strlen($line);
            },
        ]);
        if ($body !== null) {
            $json = json_encode(array_filter($body, fn ($value) => $value !== null));
            if ($json === false) {
                throw new TenureException('invalid', 'what is sent is not UTF-8: ' . json_last_error_msg());
            }
            curl_setopt($request, CURLOPT_POSTFIELDS, $json);
        }
        // Before anything is sent: a deadline that is counted from here is never too late.
        $sent = Clock::now();
        $this->underWay[$id] = [$request, $sent, $sent + $answerMax, []];
        $this->then[$id] = $then;
        curl_multi_add_handle($this->multi, $request);
        curl_multi_exec($this->multi, $running);
    }

    /** Waits until something happens, and hands out what has come. */
    private function turn(float $most): void
    {
        if ($this->underWay === []) {
            usleep((int) (1e6 * $most));
            return;
        }
        $now = Clock::now();
        foreach ($this->underWay as [, , $until]) {
            $most = min($most, max(0.001, $until - $now));
        }
        foreach ($this->holds as $hold) {
            $most = min($most, isset($this->renewing[$hold->claim]) ? $most : max(0.001, $hold->renewAt - $now));
        }
        curl_multi_exec($this->multi, $running);
        if (curl_multi_select($this->multi, $most) === -1) {
            // Nothing to wait for, or a signal.
            usleep(1_000);
        }
        curl_multi_exec($this->multi, $running);
        while (($done = curl_multi_info_read($this->multi)) !== false) {
            $this->end(spl_object_id($done['handle']), $done['result']);
        }
        $now = Clock::now();
        foreach ($this->underWay as $id => [, , $until]) {
            if ($now >= $until) {
                $this->end($id, null);
            }
        }
    }

    /** @param ?int $result of curl; null: no answer in time */
    private function end(int $id, ?int $result): void
    {
        if (!isset($this->underWay[$id])) {
            return;
        }
        [$request, $sent, , $headers] = $this->underWay[$id];
        $then = $this->then[$id];
        unset($this->underWay[$id], $this->then[$id]);
        try {
            if ($result !== CURLE_OK) {
                throw new Unanswered($result === null ? 'no answer in time' : 'no answer: ' . curl_strerror($result));
            }
            $status = curl_getinfo($request, CURLINFO_RESPONSE_CODE);
            $answer = self::reply($status, (string) curl_multi_getcontent($request), $headers, $sent);
        } catch (TenureException | Unanswered $error) {
            $answer = $error;
        }
        curl_multi_remove_handle($this->multi, $request);
        $then($answer);
    }

    private static function reply(int $status, string $text, array $headers, float $sent): Reply
    {
        $isDone = $status >= 200 && $status < 300;
        $json = $status === 204 ? null : json_decode($text, true);
        if ($isDone && ($status === 204 || is_array($json))) {
            return new Reply($status, $json, $sent);
        }
        if ($isDone) {
            throw new Unanswered('an answer that is not understood');
        }
        $problem = TenureException::of($json);
        if (in_array($status, [408, 429, 502, 503, 504], true) || $problem?->kind === 'unavailable') {
            $after = $headers['retry-after'] ?? '';
            $isSeconds = preg_match('/^[0-9]{1,4}$/D', $after) === 1;
            throw new Unanswered($problem?->getMessage() ?? "status $status", $problem, $isSeconds ? (float) $after : 0.0);
        }
        throw $problem ?? new TenureException('internal', "status $status", 'something else than `tenure serve` has answered, or an older one');
    }

    /** Begins the renewals that are due, and one release. */
    private function startDue(): void
    {
        $this->reap();
        $now = Clock::now();
        // By what is left of them: those that have little time must not have others time out with them.
        $batches = [];
        foreach ($this->holds as $hold) {
            if (isset($this->renewing[$hold->claim]) || $hold->renewAt > $now || $hold->loss() !== null) {
                continue;
            }
            $this->renewing[$hold->claim] = true;
            if ($hold->isDelivery) {
                $this->renewDelivery($hold);
            } else {
                $batches[(int) log(max(0.001, $hold->deadline() - $now), 2)][] = $hold;
            }
        }
        foreach ($batches as $batch) {
            foreach (array_chunk($batch, self::BATCH_MAX) as $chunk) {
                $this->renew($chunk);
            }
        }
        $this->startRelease($now);
    }

    private function startRelease(float $now): void
    {
        if ($this->isReleasing || $this->releases === [] || $this->releases[0][4] > $now) {
            return;
        }
        $release = array_shift($this->releases);
        $this->isReleasing = true;
        $this->releaseBackoff ??= new Backoff();
        [$method, $path, $body, $until] = $release;
        $this->begin($method, $path, $body, self::RELEASE_MAX, function ($answer) use ($release, $until): void {
            $this->isReleasing = false;
            if (!$answer instanceof Unanswered) {
                // Done, or refused: then it ends at its ttl.
                $this->releaseBackoff->reset();
                return;
            }
            $release[4] = Clock::now() + $this->releaseBackoff->next($answer);
            if ($release[4] < $until) {
                $this->releases[] = $release;
            }
        });
    }

    /** How long an answer may take, so that there is time for others if it does not come. */
    private function answerMax(Hold $hold): float
    {
        return max(0.010, min(self::ANSWER_MAX, ($hold->deadline() - Clock::now()) / 3));
    }

    /** @param list<Hold> $batch */
    private function renew(array $batch): void
    {
        $claims = array_map(fn (Hold $hold) => ['name' => $hold->name, 'claim' => $hold->claim], $batch);
        $answerMax = min(array_map($this->answerMax(...), $batch));
        $this->begin('POST', '/v1/claims/renew', ['claims' => $claims], $answerMax, function ($answer) use ($batch): void {
            $answers = [];
            foreach ($answer instanceof Reply ? (array) ($answer->json['claims'] ?? []) : [] as $one) {
                if (is_string($one['claim'] ?? null)) {
                    $answers[$one['claim']] = $one;
                }
            }
            foreach ($batch as $hold) {
                $one = $answers[$hold->claim] ?? null;
                $isAnswered = $one !== null && ($one['name'] ?? null) === $hold->name && self::heard($hold, $one, $answer->sent);
                $this->again($hold, $isAnswered, $answer);
            }
        });
    }

    private function renewDelivery(Hold $hold): void
    {
        $path = "/v1/deliveries/{$hold->claim}/renew";
        $this->begin('POST', $path, ['queue' => $hold->name], $this->answerMax($hold), function ($answer) use ($hold): void {
            if ($answer instanceof LostException) {
                $hold->lose('the store has ended it', $answer);
            }
            $this->again($hold, $answer instanceof Reply && self::heard($hold, $answer->json, $answer->sent), $answer);
        });
    }

    /** What an answer says of a hold. False: nothing. */
    private static function heard(Hold $hold, array $answer, float $sent): bool
    {
        $state = $answer['state'] ?? null;
        if ($state === 'lost' || $state === 'waiting') {
            // What waits again was granted by a store that has forgotten it.
            $hold->lose('the store has ended it', TenureException::of($answer['problem'] ?? null));
            return true;
        }
        $expires = $answer['expires_in_ms'] ?? null;
        if ($state !== 'held' || !is_int($expires) || $expires < 0) {
            return false;
        }
        if (is_int($answer['token'] ?? null) && $answer['token'] !== $hold->token) {
            $hold->lose('another grant has its place');
            return true;
        }
        $hold->renewed($sent, $expires);
        return true;
    }

    private function again(Hold $hold, bool $isAnswered, mixed $answer): void
    {
        unset($this->renewing[$hold->claim]);
        if (!$hold->isHeld()) {
            return;
        }
        $left = $hold->deadline() - Clock::now();
        if ($isAnswered) {
            $hold->renewAfter(min($hold->ttlSeen / 3, max(0.001, $left / 3)));
        } else {
            // As the server asks, but not so late that one more failure loses the lease.
            $asked = $answer instanceof Unanswered ? $answer->retryAfter : 0;
            $hold->renewAt = Clock::now() + min(max($asked, min(1.0, $left / 10)), $left / 2);
        }
    }

    /** Forgets what is over, and releases what is lost: the store may hold it for a while yet. */
    private function reap(): void
    {
        foreach ($this->holds as $hold) {
            if ($hold->loss() !== null && !$hold->isReaped) {
                $hold->isReaped = true;
                $this->forget($hold);
                if (!$hold->isDelivery && $hold->isOwn()) {
                    $this->giveUp($hold);
                }
            }
        }
    }
}

/** A lock by name. It is not re-entrant: who holds a mutex and asks for it again waits for itself. */
final class Lock
{
    /** @internal */
    public function __construct(private readonly Tenure $tenure, public readonly string $name, private readonly array $fields)
    {
    }

    /** @internal The fields of a claim, from settings. */
    public static function fields(array $settings): array
    {
        $fields = [];
        foreach ($settings as $name => $value) {
            $fields += match ($name) {
                'ttl', 'maxHold', 'minHold', 'lockDelay' => [strtolower(preg_replace('/[A-Z]/', '_$0', $name)) . '_ms' => (int) round(1000 * $value)],
                'label', 'floor' => [$name => $value],
                default => throw new TenureException('invalid', "\"$name\" is no setting of a lock"),
            };
        }
        return $fields;
    }

    /**
     * Takes it, and waits in the order in which claims came: for ever, or for so long. One round trip when it is free.
     *
     * @throws WaitTimeoutException if others hold it for longer; what is not answered by then is waited for up to 2 s more
     */
    public function acquire(?float $wait = null): Lease
    {
        return new Lease($this->tenure, $this->claiming($wait)->run());
    }

    /** Takes it if it is free and nobody waits: one round trip. Null if others hold it or wait. */
    public function tryAcquire(): ?Lease
    {
        $hold = $this->claiming(0.0)->tryRun();
        return $hold === null ? null : new Lease($this->tenure, $hold);
    }

    /**
     * Waits for it for so long, works under it, and releases it: as `Cache::lock()->block()` of Laravel does. See {@see Lease::run()}.
     *
     * @throws WaitTimeoutException if others hold it for longer
     */
    public function block(float $wait, callable $work): mixed
    {
        return $this->acquire($wait)->run($work);
    }

    /** @internal */
    public function claiming(?float $wait): Claiming
    {
        return new Claiming($this->tenure, $this->name, $this->fields, $wait);
    }
}

/**
 * One acquisition under way.
 *
 * @internal
 */
final class Claiming
{
    /** One request waits that long, so that a connection that has died unnoticed is not waited for much longer. */
    private const POLL = 10.0;

    private string $id;
    private float $until;
    private float $answeredAt;
    private bool $isSent = false;
    private bool $hasAsked = false;
    private Backoff $backoff;
    /** A value that is fresh answers as well as a grant. */
    public ?Fetched $found = null;

    public function __construct(
        private readonly Tenure $tenure,
        private readonly string $name,
        private readonly array $fields,
        private readonly ?float $wait,
    ) {
        $this->id = bin2hex(random_bytes(16));
        $this->answeredAt = Clock::now();
        $this->until = $this->answeredAt + ($wait === null ? 3.2e8 : min(max(0, $wait), 3.2e8));
        $this->backoff = new Backoff();
    }

    /** The hold; null if a value was found. */
    public function run(): ?Hold
    {
        $isDone = false;
        try {
            do {
                $hold = $this->turn();
            } while ($hold === null && $this->found === null);
            if ($hold !== null) {
                $this->tenure->hold($hold);
            }
            $isDone = true;
            return $hold;
        } finally {
            if (!$isDone) {
                $this->withdraw();
            }
        }
    }

    /** Null: others hold it. */
    public function tryRun(): ?Hold
    {
        $isDone = false;
        try {
            // Under an id that was used up by a copy of the request, or granted too late, once more.
            for ($attempt = 0; $attempt < 3; $attempt++) {
                try {
                    $this->isSent = true;
                    $hold = $this->accepted($this->tenure->repeat('PUT', $this->path(), $this->body(['wait' => false]), $this->name));
                    if ($hold !== null) {
                        $this->tenure->hold($hold);
                        $isDone = true;
                        return $hold;
                    }
                } catch (Unanswered $unanswered) {
                    throw $unanswered->asUnavailable($this->name);
                } catch (TenureException $error) {
                    if ($error->kind === 'busy') {
                        // A copy that is still on its way must not be granted when nobody waits for it.
                        $isDone = !$error->isRepeated;
                        return null;
                    }
                    if ($error->kind !== 'finished') {
                        throw $error;
                    }
                }
                $this->rename();
            }
            throw new TenureException('unavailable', 'answers come too late to be of use', 'is the ttl longer than a round trip?', $this->name);
        } finally {
            if (!$isDone) {
                $this->withdraw();
            }
        }
    }

    private function path(): string
    {
        return "/v1/claims/{$this->id}";
    }

    private function body(array $more): array
    {
        return $more + ['name' => $this->name] + $this->fields;
    }

    /** Asks once, and waits in it. Null: not yet. */
    private function turn(): ?Hold
    {
        $now = Clock::now();
        $left = $this->until - $now;
        if ($left <= 0 && $this->hasAsked) {
            $this->withdrawNow();
            throw new WaitTimeoutException($this->name, (float) $this->wait);
        }
        $poll = max(0, min(self::POLL, $left));
        try {
            $this->isSent = true;
            $this->hasAsked = true;
            $reply = $this->tenure->once('PUT', $this->path(), $this->body(['poll_ms' => (int) (1000 * $poll)]), $poll + 2.0);
            $this->answeredAt = Clock::now();
            if ($reply->status === 202) {
                if (($reply->json['claim'] ?? null) !== $this->id) {
                    throw new Unanswered('an answer that is not understood');
                }
                if ($this->answeredAt - $now >= min($poll, 0.1)) {
                    $this->backoff->reset();
                } else {
                    // It did not wait, as it was told to: the server ends, or a copy of this request has come after it.
                    $this->tenure->pause(min(max(0, $this->until - $this->answeredAt), $this->backoff->next()));
                }
                return null;
            }
            if (isset($this->fields['unless_fresh']) && ($reply->json['state'] ?? null) === 'fresh') {
                $this->found = new Fetched(Reply::bytesOf($reply->json, 'value'), false, $reply->whole('token'));
                return null;
            }
            $hold = $this->accepted($reply);
            if ($hold === null) {
                $this->rename();
            }
            return $hold;
        } catch (Unanswered $unanswered) {
            $pause = $this->backoff->next($unanswered);
            $after = Clock::now() + $pause;
            if ($after >= $this->until || $after - $this->answeredAt >= $this->tenure->patience()) {
                throw $unanswered->asUnavailable($this->name);
            }
            $this->tenure->pause($pause);
            return null;
        } catch (TenureException $error) {
            if ($error->kind !== 'finished' && $error->kind !== 'lost') {
                throw $error;
            }
            // Nothing is held under that id, and nothing will be.
            $this->rename();
            $this->tenure->pause(min(max(0, $left), $this->backoff->next()));
            return null;
        }
    }

    /** Gives the id up, and takes another. */
    private function rename(): void
    {
        $this->withdraw();
        $this->id = bin2hex(random_bytes(16));
        $this->isSent = false;
    }

    /** Ends the claim, wherever it is, if anybody can have heard of it. */
    private function withdraw(): void
    {
        if ($this->isSent) {
            $this->tenure->withdraw($this->name, $this->id, max(20.0, ($this->fields['ttl_ms'] ?? 30_000) / 500));
        }
    }

    /** The same, so that nobody waits behind a claim that was given up; later if it is not answered. */
    private function withdrawNow(): void
    {
        try {
            $this->tenure->once('DELETE', Tenure::releasePath($this->name, $this->id), null, 2.0);
        } catch (Unanswered | TenureException) {
            $this->withdraw();
        }
        $this->isSent = false;
    }

    /** What a grant is worth. Null: it was over before it came. */
    private function accepted(Reply $reply): ?Hold
    {
        $json = $reply->json;
        if (($json['state'] ?? null) !== 'granted' || ($json['claim'] ?? null) !== $this->id || ($json['name'] ?? null) !== $this->name) {
            throw new Unanswered('an answer that is not understood');
        }
        $slot = is_int($json['slot'] ?? null) ? $json['slot'] : null;
        $token = $reply->whole('token');
        $of = fn (Reply $reply): Hold => new Hold($this->name, $this->id, $token, $slot, false, $reply->sent, $reply->whole('expires_in_ms'));
        $hold = $of($reply);
        // A grant that was waited for, or that was long on its way, has less left than it says: a renewal tells how much.
        if ($reply->whole('waited_ms') === 0 && Clock::now() - $reply->sent <= $hold->ttlSeen / 3) {
            return $hold;
        }
        try {
            $renewed = $this->tenure->once('POST', $this->path() . '/renew', ['name' => $this->name], 2.0);
            $said = $renewed->json;
            if (($said['state'] ?? null) !== 'held' || ($said['claim'] ?? null) !== $this->id || ($said['token'] ?? null) !== $token) {
                throw new Unanswered('an answer that is not understood');
            }
            $hold = $of($renewed);
            return $hold->isHeld() ? $hold : null;
        } catch (LostException) {
            return null;
        }
    }
}

/** What is held, until it is released or lost. Somebody has to renew it: see the top of this file. */
final class Lease
{
    /** @internal */
    public function __construct(private readonly Tenure $tenure, private readonly Hold $hold)
    {
    }

    public function name(): string
    {
        return $this->hold->name;
    }

    /** The fencing token: larger than that of every earlier grant of this name. */
    public function token(): int
    {
        return $this->hold->token;
    }

    /** The id of this acquisition. With the token it makes the headers that resources check; with the name it restores a lease. */
    public function claim(): string
    {
        return $this->hold->claim;
    }

    /** The number of the slot, of a pool; otherwise null. */
    public function slot(): ?int
    {
        return $this->hold->slot;
    }

    /** Whether it is lost. False of one that was released. No round trip. */
    public function isLost(): bool
    {
        $loss = $this->hold->loss();
        Hold::tell();
        return $loss !== null;
    }

    /** How many seconds until it is lost, if it is not renewed. No round trip. */
    public function expiresIn(): float
    {
        return $this->hold->isHeld() ? max(0.0, $this->hold->deadline() - Clock::now()) : 0.0;
    }

    /** Does nothing while it is held. No round trip. Throws once it is lost, and from then on always. */
    public function check(): void
    {
        $loss = $this->hold->loss();
        Hold::tell();
        if ($loss !== null) {
            throw $loss;
        }
        if (!$this->hold->isHeld()) {
            throw new TenureException('invalid', "the lease of \"{$this->hold->name}\" was released");
        }
    }

    /** Renews it, and all else that this client holds, if that is due; then checks it. For each turn of a loop. */
    public function keep(): void
    {
        $this->tenure->keep();
        $this->check();
    }

    /** Has a callback hear of its loss, once: when this client next runs, since PHP has no threads. What it throws ends what runs. */
    public function onLost(callable $callback): self
    {
        $this->hold->onLost($callback);
        Hold::tell();
        return $this;
    }

    /**
     * Works under it, and releases it at the end. It is renewed each second meanwhile where pcntl is there and nobody else uses its alarm; otherwise
     * the work calls `keep()`, or is shorter than the ttl.
     *
     * @throws LostException if it was lost meanwhile
     */
    public function run(callable $work): mixed
    {
        $restore = $this->alarm();
        $isDone = false;
        try {
            $value = $work($this);
            $this->check();
            $isDone = true;
            return $value;
        } finally {
            $restore();
            try {
                $this->release();
            } catch (TenureException $error) {
                // What the work throws says more than a release that fails, and is tried again.
                if ($isDone) {
                    throw $error;
                }
            }
        }
    }

    private function alarm(): \Closure
    {
        // An alarm that is another's (a worker of Laravel has one for each job) is left alone.
        if (!function_exists('pcntl_alarm') || pcntl_signal_get_handler(SIGALRM) !== SIG_DFL) {
            return fn () => null;
        }
        $wasAsync = pcntl_async_signals(true);
        pcntl_signal(SIGALRM, function (): void {
            $this->tenure->keep();
            pcntl_alarm(1);
        });
        pcntl_alarm(1);
        return function () use ($wasAsync): void {
            pcntl_alarm(0);
            pcntl_signal(SIGALRM, SIG_DFL);
            pcntl_async_signals($wasAsync);
        };
    }

    /** Leaves it to another process, which restores it by `name()` and `claim()` within the ttl. This one does not renew or release it any more. */
    public function detach(): string
    {
        $this->check();
        $this->hold->letGo();
        $this->tenure->forget($this->hold);
        return $this->hold->claim;
    }

    /**
     * Releases it: one round trip. Whether it was held until now, as the store says.
     *
     * @throws TenureException `unavailable` if nobody has answered for 2 s: it is tried again, and nobody may work under it
     */
    public function release(): bool
    {
        return $this->hold->letGo() && $this->tenure->release($this->hold);
    }
}

/** A value, and where it came from. */
final class Fetched
{
    /** @internal */
    public function __construct(public readonly string $value, public readonly bool $isLoaded, public readonly int $token)
    {
    }
}

/** A value that one process of a fleet loads for all. Who comes while another loads waits for the new value. */
final class SingleFlight
{
    /** @internal */
    public function __construct(private readonly Tenure $tenure, private readonly Lock $lock, private readonly float $fresh)
    {
    }

    /**
     * The value if it is fresh; otherwise loads it, or waits for who loads it. One round trip for a fresh value, three to load.
     *
     * @param callable(Lease): string $load gives up to 256 KiB; what it throws is thrown on, and another loads
     */
    public function get(callable $load): Fetched
    {
        $claiming = $this->lock->claiming(null);
        $hold = $claiming->run();
        if ($hold === null) {
            return $claiming->found;
        }
        return (new Lease($this->tenure, $hold))->run(function (Lease $lease) use ($hold, $load): Fetched {
            $value = $load($lease);
            $lease->check();
            $body = ['name' => $hold->name, 'value_base64' => base64_encode($value), 'fresh_ms' => (int) round(1000 * $this->fresh), 'stale_ms' => 0];
            try {
                $this->tenure->repeat('PUT', "/v1/claims/{$hold->claim}/value", $body, $hold->name);
            } catch (LostException $error) {
                $hold->lose('the store has ended it', $error);
                throw $error;
            }
            return new Fetched($value, true, $hold->token);
        });
    }
}

/** Work in line: in order within each group, with a lease on each item that is handed out. */
final class Queue
{
    private const POLL = 10.0;
    private array $orders = [];

    /** @internal */
    public function __construct(private readonly Tenure $tenure, public readonly string $name, array $settings)
    {
        foreach ($settings as $setting => $value) {
            $this->orders += match ($setting) {
                'ttl' => ['ttl_ms' => (int) round(1000 * $value)],
                'interval' => ['interval_ms' => (int) round(1000 * $value), 'interval_of' => 'queue'],
                'groupInterval' => ['interval_ms' => (int) round(1000 * $value), 'interval_of' => 'group'],
                'attemptsMax' => ['attempts_max' => $value],
                default => throw new TenureException('invalid', "\"$setting\" is no setting of a queue"),
            };
        }
    }

    /** @internal */
    public function attemptsMax(): ?int
    {
        return $this->orders['attempts_max'] ?? null;
    }

    /**
     * Puts an item of up to 256 KiB in line, and gives its number. One round trip; what is not answered is repeated under the same dedup id, which is
     * the client's own unless one is given.
     */
    public function push(string $payload, ?string $group = null, float $delay = 0, ?string $dedup = null, ?string $context = null): int
    {
        $item = array_filter([
            'payload_base64' => base64_encode($payload),
            'group' => $group,
            'delay_ms' => (int) round(1000 * $delay),
            'dedup' => $dedup ?? bin2hex(random_bytes(16)),
            'context' => $context,
        ], fn ($value) => $value !== null);
        $reply = $this->tenure->repeat('POST', '/v1/queue/push', ['queue' => $this->name, 'items' => [$item]], $this->name);
        $problem = TenureException::of($reply->json[0]['problem'] ?? null);
        if ($problem !== null) {
            throw $problem;
        }
        try {
            return Reply::wholeOf($reply->json[0] ?? null, 'item');
        } catch (Unanswered $unanswered) {
            throw $unanswered->asUnavailable($this->name);
        }
    }

    /** Takes an item, and waits for one for so long. Null if none came. If an answer is lost, its item comes again after its ttl. */
    public function take(float $wait = 0): ?Delivery
    {
        $backoff = new Backoff();
        $answeredAt = Clock::now();
        $until = $answeredAt + max(0, $wait);
        for (;;) {
            $poll = max(0, min(self::POLL, $until - Clock::now()));
            try {
                $body = ['queue' => $this->name, 'max' => 1, 'poll_ms' => (int) (1000 * $poll)] + $this->orders;
                $reply = $this->tenure->once('POST', '/v1/queue/take', $body, $poll + 5.5);
                $answeredAt = Clock::now();
                $backoff->reset();
                $delivery = $reply->status === 204 ? null : $this->delivery($reply);
                if ($delivery !== null || Clock::now() >= $until) {
                    return $delivery;
                }
            } catch (Unanswered $unanswered) {
                $pause = $backoff->next($unanswered);
                $after = Clock::now() + $pause;
                if ($after >= $until || $after - $answeredAt >= $this->tenure->patience()) {
                    throw $unanswered->asUnavailable($this->name);
                }
                $this->tenure->pause($pause);
            }
        }
    }

    /** Null: it was over before it came, and comes again. */
    private function delivery(Reply $reply): ?Delivery
    {
        $fields = $reply->json[0] ?? null;
        if (!is_array($fields) || !is_string($fields['claim'] ?? null)) {
            throw new Unanswered('an answer that is not understood');
        }
        $of = fn (float $sent, int $expiresMs): Hold => new Hold($this->name, $fields['claim'], Reply::wholeOf($fields, 'token'), null, true, $sent, $expiresMs);
        $hold = $of($reply->sent, Reply::wholeOf($fields, 'expires_in_ms'));
        // The request may have waited for long before the item came: then a renewal tells how much is left of it.
        if (Clock::now() - $reply->sent > $hold->ttlSeen / 3 || !$hold->isHeld()) {
            try {
                $renewed = $this->tenure->once('POST', "/v1/deliveries/{$fields['claim']}/renew", ['queue' => $this->name], 2.0);
                $hold = $of($renewed->sent, $renewed->whole('expires_in_ms'));
            } catch (Unanswered | LostException) {
                return null;
            }
            if (!$hold->isHeld()) {
                return null;
            }
        }
        $payload = Reply::bytesOf($fields, 'payload');
        return new Delivery($this->tenure, $this, $this->tenure->hold($hold), $payload, $fields);
    }
}

/** An item that was handed out, and the lease on it. It may come twice: work on it must bear that, or be fenced by `token`. */
final class Delivery
{
    public readonly int $item;
    public readonly int $token;
    /** How often it has been handed out, this time included. */
    public readonly int $attempt;
    public readonly ?string $group;
    public readonly ?string $context;
    private readonly int $retryInMs;

    /** @internal */
    public function __construct(
        private readonly Tenure $tenure,
        private readonly Queue $queue,
        private readonly Hold $hold,
        public readonly string $payload,
        array $fields,
    ) {
        $this->item = (int) ($fields['item'] ?? 0);
        $this->token = $hold->token;
        $this->attempt = (int) ($fields['attempt'] ?? 1);
        $this->group = $fields['group'] ?? null;
        $this->context = $fields['context'] ?? null;
        $this->retryInMs = (int) ($fields['retry_in_ms'] ?? 1000);
    }

    /** Does nothing while it is held; throws once it is lost. No round trip. */
    public function check(): void
    {
        $loss = $this->hold->loss();
        Hold::tell();
        if ($loss !== null) {
            throw $loss;
        }
    }

    /** Renews it, and all else that this client holds, if that is due; then checks it. */
    public function keep(): void
    {
        $this->tenure->keep();
        $this->check();
    }

    /** It is done; the next one of its group can be handed out. `lost` if it came too late, `unavailable` if nobody knows. */
    public function ack(): void
    {
        $this->settle('ack', []);
    }

    /** Has it handed out again, later after each attempt, or after so many seconds. Its group waits meanwhile. */
    public function retry(string $reason, ?float $after = null): void
    {
        $afterMs = $after === null ? $this->retryInMs : (int) round(1000 * $after);
        $this->settle('retry', ['reason' => $reason, 'after_ms' => $afterMs, 'attempts_max' => $this->queue->attemptsMax()]);
    }

    /** Makes it a dead letter. */
    public function fail(string $reason): void
    {
        $this->settle('fail', ['reason' => $reason]);
    }

    /** Has it handed out again at once, as if this had not happened. */
    public function putBack(): void
    {
        $this->settle('return', []);
    }

    private function settle(string $act, array $body): void
    {
        if (!$this->hold->letGo()) {
            $this->check();
            throw new TenureException('invalid', "the item {$this->item} was settled before");
        }
        $this->tenure->forget($this->hold);
        try {
            $this->tenure->repeat('POST', "/v1/deliveries/{$this->hold->claim}/$act", ['queue' => $this->queue->name] + $body, $this->queue->name);
        } catch (LostException $error) {
            if (!$error->isRepeated) {
                throw $error;
            }
            $text = "nobody knows whether the item {$this->item} is settled: the first answer was lost, and then it was over";
            throw new TenureException('unavailable', $text, 'it may be handed out again', $this->queue->name, null, $error);
        }
    }
}
