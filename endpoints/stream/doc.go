// Package stream is what nodes and services need of JetStream: the streams and consumers of the protocol, made and
// brought to date ([Ensure], [EnsureConsumer] and their like), whether they still take and give messages ([Probe],
// [Incarnation]), which permissions a connection is denied ([Permissions]), and what flows keep ([SuspendedOf]).
//
// It knows subjects and settings, and of messages no more than their headers. All of it is safe for concurrent use, and
// every question to the server has a time within which it ends.
package stream
