package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strings"
)

// bodySize is that of each answer.
const bodySize = 1024

// serveBackend answers every request with 1 kB, as cheaply as a program can: what is
// measured is between it and the client.
func serveBackend(l net.Listener) error {
	answer := []byte(fmt.Sprintf("HTTP/1.1 200 OK\r\nServer: bench\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", bodySize, strings.Repeat("x", bodySize)))
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			r := bufio.NewReader(c)
			for {
				for {
					line, err := r.ReadSlice('\n')
					if err != nil {
						return
					}
					if len(bytes.TrimSpace(line)) == 0 {
						break
					}
				}
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}
