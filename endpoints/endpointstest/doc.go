// Package endpointstest tests services in a unit test: it runs their endpoints on a NATS server in the test's own
// process, without PostgreSQL and without a node, and plays the node's part.
//
//	kit := endpointstest.New(t)
//	kit.Serve(func(svc *endpoints.Service) error {
//	    return endpoints.HandleList(svc, "interest", yearEnd)
//	})
//	reply := kit.Send("interest",
//	    endpointstest.Item("ACC-1", account{Balance: 100}), endpointstest.Item("ACC-2", account{Balance: -5}))
//	got := endpointstest.Result[interest](t, reply, "ACC-1")
//	if err := reply.Err("ACC-2"); err == nil || err.Code != "overdrawn" { … }
//
// # What can go wrong in a test
//
// [Kit.Redeliver] delivers a request again, [Kit.Reissue] asks for its items again as a node does after a retryable
// error. [Instance.Kill] ends an instance as a crash does: nothing more of it reaches the server. [Kit.KillBetween] and
// [Kit.KillBeforeReply] do that at the two places that matter, between the messages that a stage sends and its
// acknowledgement, and before them. What a killed instance held is delivered again at once. [Kit.Stub] stands in for an
// endpoint that a flow asks.
//
// # Guarantees
//
// Nothing here waits for a time to pass: each call returns as soon as what it is about has happened, and ends the test
// with a message that says what is missing when that takes longer than Patience, or DefaultPatience for what the kit
// does itself. The messages are real: requests and replies go through JetStream and the codecs of package endpoints.
// When the test ends, instances are stopped, and one that ended with an error, or does not end, fails the test.
//
// # Not its job
//
// It decides nothing that a node decides: what is tried again, when, and in which pieces, is for the test to say.
//
// # Concurrency
//
// A Kit and its instances are safe for concurrent use, but calls that may end the test (all that take no error back)
// must come from the test's goroutine; use [Kit.Post] to have several requests under way.
package endpointstest
