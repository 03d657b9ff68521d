package workqueue

// Engine is the actor of what nodes do by themselves.
const Engine = "tranche"
