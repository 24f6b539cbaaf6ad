package internet

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os/exec"
	"time"

	"golang.org/x/crypto/ssh"
)

// sshConfig lets everybody in: the one thing that the server does is serve the repository for reading.
func sshConfig() (*ssh.ServerConfig, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	return config, nil
}

// serveSSH serves git's upload-pack on lab.git over SSH (RFC 4254, section 6), whatever path is asked for.
func (g *gitOrigin) serveSSH(conn net.Conn, config *ssh.ServerConfig) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Minute))
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	defer server.Close()
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			offered.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		g.serveSession(channel, requests)
	}
}

func (g *gitOrigin) serveSession(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for request := range requests {
		if request.Type != "exec" {
			request.Reply(request.Type == "env", nil)
			continue
		}
		request.Reply(true, nil)
		go ssh.DiscardRequests(requests)
		code := uint32(0)
		if err := g.uploadPack(channel); err != nil {
			fmt.Fprintln(channel.Stderr(), err)
			code = 1
		}
		channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
		return
	}
}

func (g *gitOrigin) uploadPack(channel ssh.Channel) error {
	command := exec.Command(g.git, "upload-pack", "lab.git")
	command.Dir, command.Env = g.root, g.env()
	command.Stdout, command.Stderr = channel, channel.Stderr()
	// Not command.Stdin: Wait would then wait for the client to close its end, which comes after the exit status.
	stdin, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	go func() {
		io.Copy(stdin, channel)
		stdin.Close()
	}()
	return command.Wait()
}
