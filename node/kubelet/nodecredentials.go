package kubelet

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// nodeCredentialsAge is how long the node's configuration of Docker counts before it
	// is read again.
	nodeCredentialsAge = 5 * time.Minute
	maxDockerConfig    = 10 << 20
)

// nodeCredentials are those of the node's configuration of Docker, which pods without
// any of their own are free to use.
type nodeCredentials struct {
	mu   sync.Mutex
	auth map[string]dockerAuth
	read time.Time
}

// of are the credentials meant for a repository.
func (n *nodeCredentials) of(repo, root string) (out []credential) {
	n.mu.Lock()
	if n.read.IsZero() || time.Since(n.read) >= nodeCredentialsAge {
		n.auth, n.read = readDockerConfig(dockerConfigs(root)), time.Now()
	}
	all := n.auth
	n.mu.Unlock()
	for _, c := range pick(repo, all) {
		out = append(out, c.credential)
	}
	return longestFirst(out)
}

// dockerConfigs are the files that are looked for, as upstream does: in the kubelet's
// directory, in that it was started in, in the user's and in that of the machine, first
// those of today's form and then those of the old one.
func dockerConfigs(root string) (files []string) {
	home, _ := os.UserHomeDir() // "": relative, and so the same as the working directory
	for _, dir := range []string{root, ".", filepath.Join(home, ".docker"), "/.docker"} {
		files = append(files, filepath.Join(dir, "config.json"))
	}
	for _, dir := range []string{root, ".", home, "/"} {
		files = append(files, filepath.Join(dir, ".dockercfg"))
	}
	return files
}

// readDockerConfig reads the first of the files that is there and holds credentials.
func readDockerConfig(files []string) map[string]dockerAuth {
	for _, file := range files {
		auth, err := readDockerAuth(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Warn("a configuration of Docker is not used", "file", file, "err", err)
		}
		if err == nil && len(auth) > 0 {
			return auth
		}
	}
	return nil
}

func readDockerAuth(file string) (map[string]dockerAuth, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is no file"))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxDockerConfig+1))
	if err == nil && len(b) > maxDockerConfig {
		err = fmt.Errorf("it is larger than %d bytes", maxDockerConfig)
	}
	if err != nil {
		return nil, err
	}
	if filepath.Base(file) == ".dockercfg" {
		var auth map[string]dockerAuth
		err := parseAuth(b, &auth)
		return auth, err
	}
	var c dockerConfig
	err = parseAuth(b, &c)
	return c.Auths, err
}
