// Package pull takes in the messages of a durable JetStream consumer by pulls that are bounded in messages and in
// bytes, and loses none of what the server sends.
//
// A server that has handed out all that a pull may bring says so at once (409, with how much of the pull is left),
// while the messages of a replicated consumer wait until the quorum knows of the delivery, and are sent after that.
// Whoever stops listening at the 409 loses them for an AckWait, as jetstream's Fetch does. So each pull has an inbox of
// its own that outlives its end:
//
//	open ──▶ late ──▶ lingering ──▶ closed
//
// It is open until the server has ended it, or the owner has given it up; late while it is known how many messages are
// still to come, which count against the owner's room; lingering when that is not known, or took too long, which counts
// no more; and closed once all are there. So what is on its way is bounded by the owner's room, and twice that after a
// fault.
//
// It is not the package's job to know what a message means, whether the consumer is the one that it was, or when to
// look it up again. All of it is safe for concurrent use.
package pull
