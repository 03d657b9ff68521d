// Package apitest is what tests of the API share: a server on a database of its own ([Setup]), one before which people
// log in, one with a node and services, and who asks them. It is for tests only.
package apitest
