package workqueue

const MaxNamed = 10 // ordinals that a violation names
