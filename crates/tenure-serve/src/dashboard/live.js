// Keeps the page that is shown up to date: by the server's events where there are, by asking again where there are none.
//
// An event says that something has changed; what is shown is asked for anew, since a list has an order and an end that an event does
// not know. Lists come from a survey that all readers share, so asking costs the store nothing. Nothing is asked while nobody looks.

import { say } from "./dom.js";

const EVENTS = ["held", "granted", "ended", "resting", "waiting", "idle", "queue", "totals"];
/** How often is asked without events, and beside them: a renewal is no event, and moves the end of a hold. */
const ASK_EVERY = 2000;
const ASK_BESIDE = 5000;
/** After how long it asks again for events that were refused. */
const STREAM_AGAIN = 15_000;
/** Events come in bursts, and one question answers all of them. */
const BURST = 50;

export class Live {
  /** `show(state, detail)` is told how it stands: live, asking, paused, away. */
  constructor(show) {
    Object.assign(this, { show, page: null, isPaused: false, stream: null, isOpen: false, timers: {}, isBusy: false, isAskedAgain: false });
    this.failures = 0;
    this.askedAt = 0;
    document.addEventListener("visibilitychange", () => this.turn());
    setInterval(() => this.isLooking() && this.page?.tick?.(), 1000);
  }

  isLooking() {
    return this.page && !this.isPaused && !document.hidden;
  }

  /** Follows a page: `{refresh, tick, heard, events: {name}|{prefix}|null, rest: ms}`. */
  async follow(page) {
    this.stop();
    this.page = page;
    // Paused or not: what is opened is shown once.
    await this.refresh(page);
    if (this.page === page) this.turn(ASK_EVERY);
  }

  stop() {
    this.page = null;
    this.still();
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.turn();
  }

  /** Begins or ends to look, as it should. */
  turn(rest = 0) {
    this.still();
    if (!this.page) return;
    if (!this.isLooking()) {
      if (this.isPaused) this.show("paused");
      return;
    }
    this.open();
    this.soon(rest);
  }

  still() {
    Object.values(this.timers).forEach(clearTimeout);
    this.timers = {};
    this.stream?.close();
    Object.assign(this, { stream: null, isOpen: false });
  }

  open() {
    const { page } = this;
    if (!page?.events) return;
    const stream = new EventSource(`/v1/events?${new URLSearchParams(page.events)}`);
    this.stream = stream;
    stream.addEventListener("open", () => (this.isOpen = true));
    stream.addEventListener("error", () => {
      this.isOpen = false;
      // It comes again by itself, unless it was refused.
      if (stream.readyState === EventSource.CLOSED) this.openAgain(STREAM_AGAIN);
    });
    stream.addEventListener("bye", () => {
      stream.close();
      this.isOpen = false;
      this.openAgain(1000);
      this.soon(page.rest);
    });
    for (const event of EVENTS) {
      stream.addEventListener(event, ({ data }) => {
        if (this.page !== page) return;
        page.heard?.(JSON.parse(data));
        // At once, unless it was asked of late.
        this.soon(Math.max(BURST, this.askedAt + page.rest - performance.now()));
      });
    }
  }

  openAgain(after) {
    clearTimeout(this.timers.open);
    this.timers.open = setTimeout(() => this.isLooking() && this.open(), after);
  }

  /** Asks after a rest, unless it does so earlier already. */
  soon(rest) {
    const at = performance.now() + rest;
    if (this.timers.ask && this.timers.at <= at) return;
    clearTimeout(this.timers.ask);
    this.timers.at = at;
    this.timers.ask = setTimeout(() => this.again(), rest);
  }

  async again() {
    const { page } = this;
    this.timers.ask = 0;
    if (!this.isLooking()) return;
    if (this.isBusy) {
      this.isAskedAgain = true;
      return;
    }
    await this.refresh(page);
    if (this.page !== page || !this.isLooking()) return;
    const wait = this.failures ? Math.min(5000, 500 * 2 ** this.failures) : this.isOpen ? ASK_BESIDE : ASK_EVERY;
    this.soon(this.isAskedAgain ? page.rest : wait);
    this.isAskedAgain = false;
  }

  async refresh(page) {
    this.isBusy = true;
    this.askedAt = performance.now();
    try {
      const summary = await page.refresh();
      if (this.page !== page) return;
      this.failures = 0;
      this.show(this.isPaused ? "paused" : "live");
      if (summary) say(summary);
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (this.page !== page || problem.status === 401) return;
      this.failures += 1;
      this.show("away", problem);
      say(`Not up to date: ${problem.message}`);
    } finally {
      this.isBusy = false;
    }
  }
}
