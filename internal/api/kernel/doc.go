// Package kernel is what the operations of all rooms of the API share: who may do what, requests that may be sent
// again, answers that say no, deadlines of bodies and answers, streams of events, and how a route is added and
// described.
//
// It knows no noun: what only one room needs is that room's. A [Kernel] serves any number of requests at once.
package kernel
