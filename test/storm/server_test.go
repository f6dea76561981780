package storm

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// binary is the knarr under test.
const binary = "../../bin/knarr"

// A server is a running knarr without a node.
type server struct {
	t     *testing.T
	addr  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
	roots *x509.CertPool
	admin tls.Certificate
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs a server on a free port until the test ends.
func start(t *testing.T) *server {
	if _, err := os.Stat(binary); err != nil {
		t.Fatal("bin/knarr is not built; run make build")
	}
	dir := t.TempDir()
	port := freePort(t)
	s := &server{t: t, addr: fmt.Sprintf("127.0.0.1:%d", port), log: filepath.Join(dir, "log"), ended: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	data := filepath.Join(dir, "data")
	s.cmd = exec.Command(binary, "server", "--disable-agent", "--data-dir", data, "--config", "/dev/null",
		"--https-listen-port", strconv.Itoa(port), "--bind-address", "127.0.0.1",
		"--cluster-cidr", "10.144.0.0/16", "--service-cidr", "10.145.0.0/16", "--node-name", "storm")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.cmd.Wait(); close(s.ended) }()
	t.Cleanup(s.stop)
	s.waitReady(filepath.Join(data, "kubeconfig"))
	return s
}

// waitReady waits for the kubeconfig, and for the server to say that it is ready.
func (s *server) waitReady(kubeconfig string) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.After(clientTimeout)
	for {
		select {
		case <-tick.C:
		case <-s.ended:
			s.t.Fatal("the server ended at once")
		case <-late:
			s.t.Fatal("the server did not get ready")
		}
		if _, err := os.Stat(kubeconfig); err != nil {
			continue
		}
		s.readKubeconfig(kubeconfig)
		if code, _ := s.client("", false).send("GET", "/readyz", ""); code == http.StatusOK {
			return
		}
	}
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(20 * time.Second):
		s.t.Error("the server did not end within 20 s")
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	if s.t.Failed() {
		b, _ := os.ReadFile(s.log)
		s.t.Logf("the server's log:\n%s", b[:min(len(b), 200_000)])
	}
}

func (s *server) running() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// readKubeconfig takes the administrator's certificate and the server's CA.
func (s *server) readKubeconfig(file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				CA []byte `json:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			}
		}
	}
	if err := yaml.Unmarshal(b, &config); err != nil {
		s.t.Fatal(err)
	}
	s.roots = x509.NewCertPool()
	s.roots.AppendCertsFromPEM(config.Clusters[0].Cluster.CA)
	if s.admin, err = tls.X509KeyPair(config.Users[0].User.Cert, config.Users[0].User.Key); err != nil {
		s.t.Fatal(err)
	}
}

// status is a line of the process's status in MB, such as VmHWM.
func (s *server) status(name string) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	_, after, _ := bytes.Cut(b, []byte("\n"+name+":"))
	kb, _, _ := bytes.Cut(bytes.TrimSpace(after), []byte(" "))
	n, err := strconv.Atoi(string(kb))
	if err != nil {
		s.t.Fatal(err)
	}
	return n / 1024
}

// forgetPeak makes the peak of memory, VmHWM, that of now.
func (s *server) forgetPeak() {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0); err != nil {
		s.t.Fatal(err)
	}
}

// A client speaks for one user.
type client struct {
	*http.Client
	base, token string
}

// client speaks HTTP/2 or, when one is true, HTTP/1.1. Without a token it is the
// administrator.
func (s *server) client(token string, one bool) *client {
	config := &tls.Config{RootCAs: s.roots}
	if token == "" {
		config.Certificates = []tls.Certificate{s.admin}
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(one)
	protocols.SetHTTP2(!one)
	transport := &http.Transport{TLSClientConfig: config, Protocols: protocols, DisableCompression: true, MaxIdleConnsPerHost: 1000}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &client{&http.Client{Transport: transport, Timeout: clientTimeout}, "https://" + s.addr, token}
}

// clientTimeout is how long anybody waits for an answer: it tells one that hangs from
// one that is late.
const clientTimeout = 2 * time.Minute

// A request is what somebody asks.
type request struct {
	method, path, kind string
	header             http.Header
	body               io.Reader
}

// do asks, and tells the answer's code and how it begins. A connection that the
// server closed is code 0.
func (c *client) do(q request) (code int, body string) {
	req, err := http.NewRequest(q.method, c.base+q.path, q.body)
	if err != nil {
		return -1, err.Error()
	}
	for k, v := range q.header {
		req.Header[k] = v
	}
	if c.token != "" && req.Header.Get("Authorization") == "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if q.kind != "" {
		req.Header.Set("Content-Type", q.kind)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

func (c *client) send(method, path, body string) (int, string) {
	return c.do(request{method: method, path: path, kind: "application/json", body: strings.NewReader(body)})
}

// must is send for what the test itself needs.
func (c *client) must(t *testing.T, method, path, body string) string {
	t.Helper()
	code, answer := c.send(method, path, body)
	if code != http.StatusOK && code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, path, code, answer)
	}
	return answer
}

// user makes a service account that may do everything in namespaces, and gives a
// token of it.
func (s *server) user(admin *client, name string) string {
	s.t.Helper()
	admin.must(s.t, "POST", "/api/v1/namespaces/storm/serviceaccounts", fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
	admin.must(s.t, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", fmt.Sprintf(`{"metadata":{"name":%q},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"kind":"ServiceAccount","namespace":"storm","name":%q}]}`, name, name))
	answer := admin.must(s.t, "POST", "/api/v1/namespaces/storm/serviceaccounts/"+name+"/token", `{"spec":{}}`)
	var review struct{ Status struct{ Token string } }
	if err := json.Unmarshal([]byte(answer), &review); err != nil {
		s.t.Fatal(err)
	}
	return review.Status.Token
}

// dial opens a connection of TLS that speaks the protocol.
func (s *server) dial(protocol string) (*tls.Conn, error) {
	d := &net.Dialer{Timeout: clientTimeout}
	return tls.DialWithDialer(d, "tcp", s.addr, &tls.Config{RootCAs: s.roots, NextProtos: []string{protocol}})
}

// goroutines is how many the server has.
func (s *server) goroutines(admin *client) int {
	resp, err := admin.Get(admin.base + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	_, after, _ := bytes.Cut(b, []byte("\ngo_goroutines "))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	n, err := strconv.Atoi(string(line))
	if err != nil {
		s.t.Fatalf("go_goroutines: %v", err)
	}
	return n
}

// random is text that does not compress.
func random(size int) string {
	b := make([]byte, size*3/4)
	for i := range b {
		b[i] = byte(i * i >> 3)
	}
	return base64.StdEncoding.EncodeToString(b)
}
