// Command pause is the workload of a test: it waits, for an hour at most.
package main

import "time"

func main() { time.Sleep(time.Hour) }
