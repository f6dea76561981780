// Command knarr-cni is the CNI plugin. It reads its task from the environment
// and its configuration from standard input, and answers on standard output.
// It is a small program of its own because it is started for every pod.
package main

import (
	"os"

	"knarr/node/cni/network"
)

func main() {
	os.Exit(network.Main(os.Getenv, os.Stdin, os.Stdout))
}
