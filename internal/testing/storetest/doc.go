// Package storetest is what tests of the store share: a store on a database of its own ([Setup]), with what they load,
// claim, answer and count on it. It is for tests only.
package storetest
