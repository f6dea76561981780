package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A contender is one of the proxies that are compared.
type contender struct {
	name             string
	plain, encrypted int // ports
	cmd              *exec.Cmd
}

// A rig is what the contenders run in.
type rig struct {
	dir, certificate, key string
	programs              map[string]string
	backend               string
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs a contender with so many further routes.
func (r *rig) start(ctx context.Context, name string, routes int) (*contender, error) {
	c := &contender{name: name, plain: freePort(), encrypted: freePort()}
	dir := filepath.Join(r.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	write := func(file, text string) (string, error) {
		path := filepath.Join(dir, file)
		return path, os.WriteFile(path, []byte(text), 0o644)
	}
	var err error
	var path string
	switch name {
	case "knarr":
		c.cmd = exec.Command(r.programs["knarr"], "-plane", fmt.Sprint(c.plain, " ", c.encrypted, " ", r.certificate, " ", r.key, " ", r.backend, " ", routes))
	case "bare":
		c.cmd = exec.Command(r.programs[name], "-bare", fmt.Sprint(c.plain, " ", r.backend))
	case "caddy":
		path, err = write("caddy.json", r.caddyConfig(c, routes))
		c.cmd = exec.Command(r.programs[name], "run", "--config", path)
		c.cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	case "traefik":
		if _, err = write("dynamic.yaml", r.traefikConfig(routes)); err == nil {
			path, err = write("traefik.yaml", fmt.Sprintf(`entryPoints:
  plain: {address: "127.0.0.1:%d", http2: {maxConcurrentStreams: 250}}
  encrypted: {address: "127.0.0.1:%d", http: {tls: {}}}
providers: {file: {filename: %s}}
log: {level: ERROR}
global: {checkNewVersion: false, sendAnonymousUsage: false}
`, c.plain, c.encrypted, filepath.Join(dir, "dynamic.yaml")))
		}
		c.cmd = exec.Command(r.programs[name], "--configFile="+path)
	case "nginx":
		path, err = write("nginx.conf", r.nginxConfig(c, dir, routes))
		c.cmd = exec.Command(r.programs[name], "-c", path, "-p", dir)
	}
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		ask, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		encrypted := name != "bare"
		n, err := load{address: c.at(encrypted), tls: encrypted, connections: 1}.run(ask, 0, nil)
		cancel()
		if n > 0 {
			return c, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			c.stop()
			text, _ := os.ReadFile(log.Name())
			return nil, errors.Join(fmt.Errorf("%s does not serve: %s", name, text), err)
		}
	}
}

func (c *contender) at(encrypted bool) string {
	if encrypted {
		return fmt.Sprintf("127.0.0.1:%d", c.encrypted)
	}
	return fmt.Sprintf("127.0.0.1:%d", c.plain)
}

func (c *contender) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.cmd.Wait()
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		_ = c.cmd.Process.Kill()
		<-done
	}
}

// processes are the contender's: its own, and its workers'.
func (c *contender) processes() []int {
	all := []int{c.cmd.Process.Pid}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", all[0], all[0]))
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// cpu is the time of processors that the contender has used.
func (c *contender) cpu() (total time.Duration) {
	for _, pid := range c.processes() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); err == nil && len(b) > 0 {
			for _, t := range tasks {
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, t.Name()))
				if f := strings.Fields(string(b)); len(f) > 0 {
					n, _ := strconv.ParseInt(f[0], 10, 64)
					total += time.Duration(n)
				}
			}
		}
	}
	return total
}

// memory is what the contender holds, without what it shares.
func (c *contender) memory() (bytes int64) {
	for _, pid := range c.processes() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "RssAnon:" {
				n, _ := strconv.ParseInt(f[1], 10, 64)
				bytes += n << 10
			}
		}
	}
	return bytes
}

func (r *rig) nginxConfig(c *contender, dir string, routes int) string {
	var more strings.Builder
	for i := range routes {
		fmt.Fprintf(&more, "server { listen 127.0.0.1:%d; server_name host-%d.example; location /path { proxy_pass http://backend; } }\n", c.plain, i)
	}
	return fmt.Sprintf(`daemon off; worker_processes 2; pid %s/pid; error_log stderr;
events { worker_connections 4096; }
http {
  access_log off; server_names_hash_max_size 65536; server_names_hash_bucket_size 128; keepalive_requests 1000000000;
  client_body_temp_path %[1]s/1; proxy_temp_path %[1]s/2; fastcgi_temp_path %[1]s/3; uwsgi_temp_path %[1]s/4; scgi_temp_path %[1]s/5;
  upstream backend { server %[2]s; keepalive 512; keepalive_requests 1000000000; }
  proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
  proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Real-IP $remote_addr;
  proxy_set_header X-Forwarded-Host $host; proxy_set_header X-Forwarded-Port $server_port;
  server {
    listen 127.0.0.1:%[3]d default_server; listen 127.0.0.1:%[4]d ssl http2 default_server;
    ssl_certificate %[5]s; ssl_certificate_key %[6]s; ssl_protocols TLSv1.2 TLSv1.3;
    location / { proxy_pass http://backend; }
  }
  %[7]s
}
`, dir, r.backend, c.plain, c.encrypted, r.certificate, r.key, more.String())
}

func (r *rig) caddyConfig(c *contender, routes int) string {
	proxy := fmt.Sprintf(`{"handler":"reverse_proxy","upstreams":[{"dial":%q}],"transport":{"protocol":"http","keep_alive":{"max_idle_conns_per_host":512}}}`, r.backend)
	var list []string
	for i := range routes {
		list = append(list, fmt.Sprintf(`{"match":[{"host":["host-%d.example"],"path":["/path*"]}],"handle":[%s]}`, i, proxy))
	}
	list = append(list, fmt.Sprintf(`{"handle":[%s]}`, proxy))
	all := strings.Join(list, ",")
	return fmt.Sprintf(`{"admin":{"disabled":true},"logging":{"logs":{"default":{"level":"ERROR"}}},"apps":{
"tls":{"certificates":{"load_files":[{"certificate":%q,"key":%q}]}},
"http":{"servers":{
"plain":{"listen":["127.0.0.1:%d"],"automatic_https":{"disable":true},"routes":[%s]},
"encrypted":{"listen":["127.0.0.1:%d"],"protocols":["h1","h2"],"automatic_https":{"disable":true},"tls_connection_policies":[{}],"routes":[%s]}}}}}`,
		r.certificate, r.key, c.plain, all, c.encrypted, all)
}

func (r *rig) traefikConfig(routes int) string {
	var more strings.Builder
	for i := range routes {
		fmt.Fprintf(&more, "    route-%d: {rule: 'Host(`host-%d.example`) && PathPrefix(`/path`)', service: backend}\n", i, i)
	}
	return fmt.Sprintf(`http:
  routers:
    all: {rule: "PathPrefix(`+"`/`"+`)", service: backend, entryPoints: [plain]}
    tls: {rule: "PathPrefix(`+"`/`"+`)", service: backend, entryPoints: [encrypted], tls: {}}
%s  services:
    backend: {loadBalancer: {serversTransport: kept, servers: [{url: "http://%s"}]}}
  serversTransports:
    kept: {maxIdleConnsPerHost: 512}
tls: {certificates: [{certFile: %s, keyFile: %s}], stores: {default: {defaultCertificate: {certFile: %[3]s, keyFile: %[4]s}}}}
`, more.String(), r.backend, r.certificate, r.key)
}
