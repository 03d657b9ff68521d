package workqueue

// MinPrefix is the least number of hexadecimal digits that count as the beginning of an id.
const MinPrefix = 4
