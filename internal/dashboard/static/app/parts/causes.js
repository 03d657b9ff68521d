// Why a slice was created, in words; as in package workqueue.
export const causes = {
  ready: "first request",
  retry: "the service asked to try again",
  unanswered: "left out of the last reply",
  failure: "its entire request failed",
  deadline: "no reply before the deadline",
  silence: "no reply before the deadline; not counted as a failure",
  session: "the node that had it is gone",
  handback: "the node that had it stopped",
  streams: "a stream was lost",
  split: "the request was too large",
  bisect: "half of a request that failed entirely",
  exhausted: "redelivered repeatedly without a reply",
  unreadable: "the reply could not be read",
  breaker: "failed while the endpoint was known to be down",
  throttled: "the service was overloaded",
  probe: "sent to see whether the endpoint is up again",
};
