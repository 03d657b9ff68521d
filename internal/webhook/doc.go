// Package webhook sends messages to receivers by HTTP: signed as https://www.standardwebhooks.com has it, or as they
// are.
//
// Guarantees: a secret signs for the hosts that the operator's file says, and no others; redirects are not followed; an
// attempt is bounded in time, and so is what is read of its answer. What is told of a failure is in words of ours, and
// what the receiver said stands apart, since it may repeat what it was asked for.
//
// Not its job: what is to be sent, and when again; which addresses may be reached, which the transport guards.
//
// Concurrency: a Sender is safe for concurrent use.
package webhook
