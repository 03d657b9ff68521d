// How times are shown: in which zone, and as ages or clock times. This browser keeps the choice; the frame redraws.
import { keep, kept } from "./storage.js";

/** times: zone is "local", "utc" or "schedule"; absolute shows clock times in place of ages; own is the zone of the open schedule. */
export const times = { zone: "local", absolute: false, ...kept("times"), own: "" };

export function setTimes(changes) {
  Object.assign(times, changes);
  keep("times", { zone: times.zone, absolute: times.absolute });
}

export const localZone = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** zoneName is the zone in effect. */
export const zoneName = () => (times.zone === "utc" ? "UTC" : (times.zone === "schedule" && times.own) || localZone);

const formats = new Map();

/** parts of a time in the zone in effect: {year, month, day, hour, minute, second, timeZoneName}, as text. */
export function parts(time) {
  const timeZone = zoneName();
  if (!formats.has(timeZone)) {
    formats.set(timeZone, new Intl.DateTimeFormat("en-US", { timeZone, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
      hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" }));
  }
  return Object.fromEntries(formats.get(timeZone).formatToParts(new Date(time)).map((p) => [p.type, p.value]));
}

/** offset is how many seconds the zone in effect is ahead of UTC at a time. */
export function offset(time) {
  const p = parts(time);
  return Math.round((Date.UTC(p.year, p.month - 1, p.day, p.hour, p.minute, p.second) - new Date(time)) / 1000);
}
