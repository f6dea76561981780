package main

import (
	"archive/tar"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// sources is where the images' files come from. Everything it makes is in the
// cache.
type sources struct {
	cache string
	// lists are the releases whose lists of packages are those of today.
	lists map[release]bool
}

// program is the path of one of upstream's programs, built if need be.
func (s *sources) program(name string) (string, error) {
	return output(exec.Command("go", "run", "./upstream", "-cache", s.cache, name))
}

// kubernetes is the path of a file of upstream's repository.
func (s *sources) kubernetes(path string) (string, error) {
	if _, err := output(exec.Command("go", "mod", "download", "k8s.io/kubernetes")); err != nil {
		return "", err
	}
	dir, err := output(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"))
	return filepath.Join(dir, path), err
}

// coreDNS is built once, as its own module says: beside this one's it would be others.
func (s *sources) coreDNS() (string, error) {
	const version = "v1.12.4"
	path := filepath.Join(s.cache, "coredns-"+version)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	out, err := output(exec.Command("go", "mod", "download", "-json", "github.com/coredns/coredns@"+version))
	if err != nil {
		return "", err
	}
	var at struct{ Dir string }
	if err := json.Unmarshal([]byte(out), &at); err != nil {
		return "", fmt.Errorf("download CoreDNS: %w", err)
	}
	made := fmt.Sprintf("%s.%d", path, os.Getpid()) // several runs may build it at a time
	cmd := exec.Command("go", "build", "-C", at.Dir, "-trimpath", "-ldflags", "-s -w", "-o", made, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if _, err := output(cmd); err != nil {
		return "", err
	}
	return path, os.Rename(made, path)
}

// pause is upstream's, which is in C.
func (s *sources) pause() (string, error) {
	source, err := s.kubernetes("build/pause/linux/pause.c")
	if err != nil {
		return "", err
	}
	return s.compile("pause", source, "-DVERSION=3.10.2")
}

// shell is the program of sh.c.
func (s *sources) shell() (string, error) {
	source := filepath.Join(s.cache, "sh.c")
	if err := os.WriteFile(source, []byte(shellSource), 0o644); err != nil {
		return "", err
	}
	return s.compile("sh", source)
}

//go:embed shell/sh.c
var shellSource string

// compile makes a static program.
func (s *sources) compile(name, source string, more ...string) (string, error) {
	path := filepath.Join(s.cache, name)
	if _, err := output(exec.Command("gcc", append(more, "-Os", "-Wall", "-static", "-s", "-o", path, source)...)); err != nil {
		return "", fmt.Errorf("%w; install gcc and libc6-dev", err)
	}
	return path, nil
}

// A release is where packages come from: one of Debian's by its name, or the
// host's own.
type release string

const (
	hosts  release = ""
	newest release = "trixie" // its busybox has a wget whose -T works
)

// options make apt-get read the release's packages, which dir has a list of.
func (r release) options(dir string) ([]string, error) {
	if r == hosts {
		return nil, nil
	}
	archive, err := debianArchive("/etc/apt")
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, "sources.list")
	line := "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + archive + " " + string(r) + " main\n"
	return []string{"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=" + os.DevNull}, os.WriteFile(list, []byte(line), 0o644)
}

// packages downloads Debian packages with all that they need, without the
// host's package lists and without installing anything, and returns their files.
func (s *sources) packages(r release, names ...string) ([]string, error) {
	dir := filepath.Join(s.cache, "apt", string(r))
	archives := filepath.Join(dir, "archives")
	if err := os.RemoveAll(archives); err != nil { // what an earlier call wanted
		return nil, err
	}
	for _, d := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	status := filepath.Join(dir, "status") // nothing is installed
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	from, err := r.options(dir)
	if err != nil {
		return nil, err
	}
	apt := func(args ...string) error {
		_, err := output(exec.Command("apt-get", slices.Concat([]string{"-q", "-y",
			"-o", "Dir::State::status=" + status, "-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"),
			"-o", "Dir::Cache=" + dir, "-o", "Dir::Cache::archives=" + archives,
			"-o", "APT::Sandbox::User=", "-o", "APT::Install-Recommends=false", "-o", "Debug::NoLocking=true"}, from, args)...))
		return err
	}
	if !s.lists[r] {
		if err := apt("update"); err != nil {
			return nil, err
		}
		s.lists[r] = true
	}
	if err := apt(append([]string{"install", "--download-only"}, names...)...); err != nil {
		return nil, err
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err == nil && len(debs) == 0 {
		err = errors.New("apt-get downloaded nothing")
	}
	return debs, err
}

// debian puts Debian packages into a layer, without their documentation.
func debian(s *sources, l *files, names ...string) error {
	debs, err := s.packages(hosts, names...)
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if err := unpack(l, deb); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
	}
	return nil
}

// left are the folders of packages that no test reads.
var left = []string{"./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/lintian", "./usr/share/bash-completion", "./usr/share/perl5", "./usr/share/info"}

func unpack(l *files, deb string) error {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", deb)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := tar.NewReader(out)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return errors.Join(err, cmd.Wait())
		}
		if h.Name == "./" || slices.ContainsFunc(left, func(d string) bool { return strings.HasPrefix(h.Name, d) }) {
			continue
		}
		name := strings.TrimPrefix(h.Name, "./")
		if h.Typeflag == tar.TypeDir && l.seen[strings.TrimSuffix(name, "/")] {
			continue
		}
		if err := l.header(tar.Header{Name: name, Typeflag: h.Typeflag, Mode: h.Mode, Size: h.Size, Linkname: h.Linkname, Uid: h.Uid, Gid: h.Gid}); err != nil {
			return err
		}
		if _, err := io.Copy(l.w, r); err != nil {
			return err
		}
	}
	return cmd.Wait()
}

// unpacked is the path of one file of a Debian package.
func (s *sources) unpacked(r release, name, file string) (string, error) {
	debs, err := s.packages(r, name)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.cache, "debian"+string(r)+"-"+runtime.GOARCH)
	for _, deb := range debs {
		if strings.HasPrefix(filepath.Base(deb), name+"_") {
			_, err := output(exec.Command("dpkg-deb", "-x", deb, dir))
			return filepath.Join(dir, file), err
		}
	}
	return "", fmt.Errorf("no %s among the packages downloaded", name)
}

// output runs a command and returns what it said, without the end of line.
func output(cmd *exec.Cmd) (string, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w\n%s", strings.Join(cmd.Args[:min(len(cmd.Args), 4)], " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
