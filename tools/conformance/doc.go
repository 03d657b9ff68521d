// Package conformance checks a service against docs/protocol.md, whatever language it is written in.
//
// It plays the node: it publishes requests for one endpoint, reads the replies as they are published, and listens to
// every acknowledgement that the service sends. A check is a short conversation about requests of its own, bounded in
// time, that ends well or with what was expected, what came and the section of the page that says so. Checks run one
// after the other.
//
// Most checks work with any endpoint that can be sent sample items. The others need the conformance endpoint, whose
// payloads say what is to become of them; [Run] asks an endpoint whether it is one. What a check needs and does not
// find leaves it out, with the reason, and is no failure.
//
// Without a URL the suite has a NATS server of its own and starts the service itself, and for one check once more, on
// three servers. With one it uses that server, and
// refuses to when a node reads replies there or the endpoint has work to do: the checks change limits of the reply
// stream, and remove what they made.
//
// Not its job: speed, permissions, and what a service does with its own data.
//
// A Run uses several goroutines, all ended when it returns. Runs may go on side by side on servers of their own.
package conformance
