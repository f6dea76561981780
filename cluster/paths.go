package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Where other commands find what belongs to the cluster of a data directory,
// which is given as an absolute path.

// TokenFile holds what nodes join the server with.
func TokenFile(dir string) string { return layout{dir}.tokenFile() }

// ServerTokenFile holds what further servers join the server with.
func ServerTokenFile(dir string) string { return layout{dir}.serverTokenFile() }

// Kubeconfig is the administrator's, for the server's own machine.
func Kubeconfig(dir string) string { return layout{dir}.kubeconfig() }

// StateFile is there from the first start to the last trace.
func StateFile(dir string) string { return layout{dir}.state() }

// Running reports whether a server or an agent holds the directory.
func Running(dir string) bool { return layout{dir}.running() }

// Token reads what nodes join the server of dir with, or what servers do.
func Token(dir string, servers bool) (string, error) {
	file := TokenFile(dir)
	if servers {
		file = ServerTokenFile(dir)
	}
	b, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("--data-dir %s is no server's; a server writes its token at its first start", dir)
	case errors.Is(err, os.ErrPermission):
		return "", fmt.Errorf("%w; the token is root's to read, use sudo", err)
	case err != nil:
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}
