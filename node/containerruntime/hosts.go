package containerruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const (
	hostsFile = "/etc/hosts"
	hostsText = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
)

// makeHosts writes a hosts file if the machine has none: containerd copies it
// for each sandbox and cannot start one without. It stays, as it is what any
// machine has and other programs rely on.
func makeHosts(path string) (made bool, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("make %s, without which no pod can be started: %w", path, err)
	}
	_, err = f.WriteString(hostsText)
	return true, errors.Join(err, f.Close())
}
