// Package admin is the routes of the system itself: who may use it and who is logged in, what operators did, what is
// kept for how long, the streams, the nodes, and what a person must see to.
package admin
