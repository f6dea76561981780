// Command architecture draws the picture of the first page from the table that
// starts the components. It reads cluster/components.go and cluster/node.go, and
// writes docs/architecture.svg: go run ./docs/architecture, from the root.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const picture = "docs/architecture.svg"

func main() {
	svg, err := render(".")
	if err == nil {
		err = os.WriteFile(picture, svg, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "architecture:", err)
		os.Exit(1)
	}
}

// render makes the picture of the tree at root.
func render(root string) ([]byte, error) {
	servers, err := components(filepath.Join(root, "cluster/components.go"))
	if err != nil {
		return nil, err
	}
	nodes, err := components(filepath.Join(root, "cluster/node.go"))
	if err != nil {
		return nil, err
	}
	return draw(servers, nodes)
}
