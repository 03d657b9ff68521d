// Package httpfetch asks external HTTP services for the parts of a chunk: with one request for each item, some at once,
// or with one for the chunk. It is what steps of kind http do.
//
// Guarantees:
//
//   - Addresses of this machine and of private networks are reached only when the operator's file allows them. That is
//     looked at when the connection is made, on the address that it is made to: what a name means in between does not
//     matter, nor how an address is written, nor where a redirect leads.
//   - A secret goes to the hosts that the operator's file names, and nowhere else: no redirect takes it, or anything
//     else that the plan puts into headers, to another host. It stands in no error; what a service answers is cleaned
//     of it before it is quoted.
//   - Proxies of the environment are not used.
//   - A response is read up to a size and for a time. JSON is checked; anything else keeps its content type.
//   - An item that a service does not know, or refuses, has an error of its own. When nothing comes of a service at all
//     the chunk fails as a whole and its items are not to blame.
//   - After a Retry-After nothing is sent to that host before: RestsUntil says until when. A short one is waited for.
//
// Not its job: tries, which the node makes by the codes of the errors; the budget of a host over all nodes.
//
// Concurrency: a Client is for a whole node, and safe for concurrent use.
package httpfetch
