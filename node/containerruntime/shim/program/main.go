// Command program is knarr-shim: it runs all containers of a node. containerd
// executes it, too, for what it asks of a shim's program.
package main

import (
	"fmt"
	"os"

	"knarr/node/containerruntime/shim"
)

func main() {
	if err := shim.Main(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
