package main

// extras are the commands that live on top of the others.
type extras struct{}
