<?php

// What the suite for thin clients does not ask: `TENURE_TEST_COMMAND=tenure php clients/php/test.php`.

declare(strict_types=1);

namespace Tenure;

require __DIR__ . '/Tenure.php';

ini_set('assert.exception', '1');
set_error_handler(fn (int $level, string $text, string $file, int $line) => throw new \ErrorException($text, 0, $level, $file, $line));

$folder = sys_get_temp_dir() . '/tenure-php-' . getmypid();
mkdir($folder);
$url = "unix:$folder/tenure.sock";
$command = [getenv('TENURE_TEST_COMMAND'), '--engine', "local:$folder/locks", 'serve', '--listen', $url];
$server = proc_open($command, [2 => ['pipe', 'w']], $pipes);
fgets($pipes[2]);
$self = getmypid();
register_shutdown_function(function () use ($server, $folder, $self): void {
    if (getmypid() === $self) {
        proc_terminate($server, SIGKILL);
        exec('rm -r ' . escapeshellarg($folder));
    }
});

function same(mixed $expected, mixed $found): void
{
    if ($expected !== $found) {
        throw new \Exception('expected ' . var_export($expected, true) . ', found ' . var_export($found, true));
    }
}

function thrown(string $kind, callable $work): void
{
    try {
        $work();
    } catch (TenureException $error) {
        same($kind, $error->kind);
        return;
    }
    throw new \Exception("not $kind");
}

/** Runs lines as a program of its own, and returns what it printed. */
function program(string $folder, string $lines): array
{
    file_put_contents("$folder/program.php", "<?php\n$lines");
    exec('php ' . escapeshellarg("$folder/program.php"), $printed, $code);
    same(0, $code);
    return $printed;
}

$tests = [
    'the lines of the guide work' => function () use ($folder, $url): void {
        $page = file_get_contents(__DIR__ . '/../../docs/guides/node-and-php.md');
        preg_match_all('/^```php\n(.*?)^```/ms', $page, $blocks);
        $lines = str_replace(["'Tenure.php'", 'unix:/run/tenure.sock'], [var_export(__DIR__ . '/Tenure.php', true), $url], implode("\n", $blocks[1]));
        $printed = program($folder, "\$orders = [1, 2]; function charge(int \$token): void { echo 'charged ', \$token > 0 ? 'well' : '', \"\\n\"; }\n$lines");
        same(array_fill(0, 4, 'charged well'), $printed);
    },
    'an alarm keeps a lease while work does nothing for it' => function () use ($url): void {
        $tenure = Tenure::connect($url);
        $tenure->mutex('alarm', ttl: 3)->block(5, function (Lease $lease): void {
            $until = hrtime(true) + 7e9;
            while (hrtime(true) < $until) {
                usleep(1_000);
            }
            $lease->check();
        });
        same(SIG_DFL, pcntl_signal_get_handler(SIGALRM));
    },
    "another's alarm is left alone, and work that is too long loses the lease" => function () use ($url): void {
        $alarms = 0;
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, function () use (&$alarms): void {
            $alarms++;
        });
        $told = 0;
        $tenure = Tenure::connect($url);
        thrown('lost', function () use ($tenure, &$told): void {
            $tenure->mutex('late', ttl: 0.3)->block(5, function (Lease $lease) use (&$told): void {
                $lease->onLost(function () use (&$told): void {
                    $told++;
                });
                pcntl_alarm(1);
                sleep(5);
            });
        });
        pcntl_signal(SIGALRM, SIG_DFL);
        same([1, 1], [$alarms, $told]);
    },
    'what is held is kept while the client waits for another' => function () use ($url): void {
        $tenure = Tenure::connect($url);
        $other = Tenure::connect($url);
        $busy = $other->mutex('busy', ttl: 60)->acquire();
        $held = $tenure->mutex('held', ttl: 1)->acquire();
        thrown('timeout', fn () => $tenure->mutex('busy')->acquire(4));
        $held->check();
        same(null, $other->mutex('held')->tryAcquire());
        same([true, true], [$held->release(), $busy->release()]);
    },
    'a child that was forked has none of its parent\'s leases' => function () use ($url): void {
        $tenure = Tenure::connect($url);
        $lease = $tenure->mutex('forked', ttl: 60)->acquire();
        $pid = pcntl_fork();
        if ($pid === 0) {
            // Its own lease, and none of the parent's; its end releases what is its own.
            $tenure->keep();
            $own = $tenure->mutex('forked/child', ttl: 60)->acquire(5);
            exit($lease->isLost() && !$lease->release() && !$own->isLost() ? 7 : 1);
        }
        pcntl_waitpid($pid, $status);
        same(7, pcntl_wexitstatus($status));
        $lease->check();
        same(null, Tenure::connect($url)->mutex('forked')->tryAcquire());
        same(true, Tenure::connect($url)->mutex('forked/child')->tryAcquire() !== null);
        same(true, $lease->release());
    },
    'a program that fails releases what it holds' => function () use ($folder, $url): void {
        file_put_contents("$folder/fails.php", '<?php require ' . var_export(__DIR__ . '/Tenure.php', true) . ";
            \$lease = Tenure\\Tenure::connect('$url')->mutex('failed', ttl: 600)->acquire();
            throw new Exception('so it is');");
        exec('php ' . escapeshellarg("$folder/fails.php") . ' 2>&1', $printed, $code);
        same(255, $code);
        same(true, Tenure::connect($url)->mutex('failed')->tryAcquire() !== null);
    },
    'a lease is restored once it is detached, and not when it has ended' => function () use ($url): void {
        $lease = Tenure::connect($url)->mutex('restored', ttl: 60)->acquire();
        $claim = $lease->detach();
        thrown('invalid', fn () => $lease->check());
        $restored = Tenure::connect($url)->restore('restored', $claim);
        same($lease->token(), $restored->token());
        same(true, $restored->release());
        thrown('lost', fn () => Tenure::connect($url)->restore('restored', $claim));
    },
    'one loads for all, and an error of it is thrown on' => function () use ($url): void {
        $flight = Tenure::connect($url)->singleFlight('flight', 60);
        try {
            $flight->get(fn () => throw new \DomainException('no rates'));
            same('thrown', 'not');
        } catch (\DomainException) {
        }
        $loaded = $flight->get(fn () => 'value');
        $found = $flight->get(fn () => 'another');
        same(['value', true, 'value', false, $loaded->token], [$loaded->value, $loaded->isLoaded, $found->value, $found->isLoaded, $found->token]);
    },
    'items are settled in each way' => function () use ($url): void {
        $queue = Tenure::connect($url)->queue('items', attemptsMax: 2);
        $queue->push('one', group: 'g');
        $queue->push('two', group: 'g', dedup: 'second');
        $queue->push('two', group: 'g', dedup: 'second');
        $queue->take()->retry('not yet', 0);
        $again = $queue->take(5);
        same(['one', 2, 'g'], [$again->payload, $again->attempt, $again->group]);
        $again->fail('never');
        $second = $queue->take(5);
        $second->putBack();
        $second = $queue->take(5);
        $second->keep();
        $second->ack();
        same(null, $queue->take());
        thrown('invalid', fn () => $second->ack());
    },
    'what cannot be right is said before anything is sent' => function () use ($url): void {
        thrown('invalid', fn () => Tenure::connect('redis://127.0.0.1'));
        thrown('invalid', fn () => Tenure::connect($url, "a\r\nb"));
        $tenure = Tenure::connect($url);
        thrown('invalid', fn () => $tenure->mutex('a', ttl_ms: 5));
        thrown('invalid', fn () => $tenure->mutex('')->tryAcquire());
        thrown('invalid', fn () => $tenure->mutex("\xff")->tryAcquire());
        $units = $tenure->semaphore('units', 2)->acquire();
        thrown('conflict', fn () => $tenure->semaphore('units', 3)->tryAcquire());
        $tenure->close();
        same(true, $units->isLost());
    },
];
foreach ($tests as $name => $test) {
    $test();
    echo "passed $name\n";
}
