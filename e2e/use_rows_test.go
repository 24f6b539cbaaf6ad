package e2e

// row is one thing that workloads do. In command and its neighbour HOST stands for the name that it is about: the host of
// the first target in the row itself, OTHER for a name that the policy does not know; in the neighbour HOST is that too.
type row struct {
	name string
	// needs are the targets of the allowlist: exactly what the command needs.
	needs   string
	command string // of sh
	want    string // a regular expression, for what it prints
	// neighbour is to be refused; if empty, it is the same command for another name.
	neighbour string
}

// uses are run one after another in a container of Debian.
var uses = []row{
	{name: "curl-https", needs: "web.test:443", command: "curl -sS -m 20 https://HOST/", want: "^web.test at .* by https"},
	{name: "curl-http", needs: "web.test:80", command: "curl -sS -m 20 http://HOST/", want: "^web.test at .* by http"},
	{name: "curl-http2", needs: "web.test:443", command: "curl -sS -m 20 --http2 -o /dev/null -w '%{http_version}' https://HOST/", want: "^2$"},
	{name: "curl-h2c", needs: "web.test:80", command: "curl -sS -m 20 --http2-prior-knowledge -o /dev/null -w '%{http_version}' http://HOST/", want: "^2$"},
	{name: "curl-upload", needs: "web.test:443", want: "^10000000 ",
		command: "head -c 10000000 /dev/zero | curl -sS -m 30 -T - -X POST https://HOST/upload"},
	{name: "curl-download", needs: "web.test:443", command: "curl -sS -m 30 'https://HOST/bytes?n=50000000' | wc -c", want: "^50000000$",
		neighbour: "curl -sS -m 20 -f 'https://HOST/bytes?n=5'"},
	{name: "curl-ipv4-address", needs: "203.0.113.60:80", command: "curl -sS -m 20 http://HOST/", want: " at 203.0.113.60 by http",
		neighbour: "curl -sS -m 20 http://203.0.113.61/"},
	{name: "curl-ipv6-address", needs: "[2001:db8::60]:80", command: "curl -sS -g -m 20 http://[2001:db8::60]/", want: " at 2001:db8::60 by http",
		neighbour: "curl -sS -g -m 20 http://[2001:db8::61]/"},
	{name: "curl-explicit-proxy", needs: "web.test:443", command: "curl -sS -m 20 -x http://127.0.0.12:3128 https://HOST/", want: "^web.test at .* by https"},
	{name: "server-sent-events", needs: "web.test:443", command: "curl -sS -N -m 20 'https://HOST/events?n=3'", want: "(?s)data: 0.*data: 1.*data: 2"},
	{name: "websocket-tls", needs: "web.test:443", command: "use websocket wss://HOST/ws", want: "^ok$"},
	{name: "websocket", needs: "web.test:80", command: "use websocket ws://HOST/ws", want: "^ok$"},
	{name: "grpc-tls", needs: "web.test:443", command: "use grpc https://HOST/lab.Echo/Stream", want: "^ok$"},
	{name: "grpc-h2c", needs: "web.test:80", command: "use grpc http://HOST/lab.Echo/Stream", want: "^ok$"},

	{name: "git-https", needs: "git.test:443", want: "^42$",
		command: "rm -rf /tmp/lab; git clone --quiet https://HOST/smart/lab.git /tmp/lab && git -C /tmp/lab fetch --quiet && cat /tmp/lab/answer"},
	{name: "git-ssh", needs: "git.test:22", want: "^42$",
		command: "rm -rf /tmp/lab; GIT_SSH_COMMAND='ssh -o StrictHostKeyChecking=no -o LogLevel=ERROR' " +
			"git clone --quiet ssh://git@HOST/lab.git /tmp/lab && git -C /tmp/lab fetch --quiet && cat /tmp/lab/answer"},
	{name: "pip", needs: "pypi.test:443 files.pypi.test:443", want: "^lab$",
		command: "rm -rf /tmp/py; pip install --quiet --retries 0 --no-deps --target /tmp/py --index-url https://HOST/simple/ labpkg && " +
			"PYTHONPATH=/tmp/py python3 -c 'import labpkg; print(labpkg.name)'"},
	{name: "apt", needs: "apt.use.test:80", want: "^lab$",
		command: "echo 'deb [trusted=yes] http://HOST/debian ./' >/tmp/list; set -- -qq -o Dir::Etc::SourceList=/tmp/list -o Dir::Etc::SourceParts=- " +
			"-o Acquire::Retries=0 -o Acquire::Languages=none; apt-get \"$@\" -o APT::Update::Error-Mode=any update && " +
			"apt-get \"$@\" install --yes --reinstall labtool >/dev/null 2>&1 && labtool"},
	{name: "go", needs: "proxy.use.test:443", want: `"Version": "v1.0.0"`,
		command: "rm -rf /tmp/go; GOPATH=/tmp/go GOCACHE=/tmp/go GOFLAGS=-modcacherw GOPROXY=https://HOST GOSUMDB=off GOTOOLCHAIN=local " +
			"/usr/local/go/bin/go mod download -json lab.test/module@v1.0.0"},

	{name: "npm", needs: "npm.test:443", command: "npm 22 https://HOST/npm/", want: "^labpkg 41$"},
	{name: "cargo", needs: "crates.test:443 files.crates.test:443", command: "cargo https://HOST/smart/index.git 100", want: "^100 crates$"},
	{name: "node-20", needs: "web.test:443", command: "node 20 https://HOST/", want: "^v20.* web.test at"},
	{name: "node-22", needs: "web.test:443", command: "node 22 https://HOST/", want: "^v22.* web.test at"},
	{name: "node-24", needs: "web.test:443", command: "node 24 https://HOST/", want: "^v24.* web.test at"},
	{name: "node-24-explicit-proxy", needs: "web.test:443", want: "^v24.* web.test at",
		command: "NODE_USE_ENV_PROXY=1 HTTPS_PROXY=http://127.0.0.12:3128 node 24 https://HOST/"},
	{name: "java", needs: "web.test:443", command: "java https://HOST/", want: "(?s)^web.test at.*^web.test at"},
	{name: "java-explicit-proxy", needs: "web.test:443", want: "(?s)^web.test at.*^web.test at",
		command: "JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=127.0.0.12 -Dhttps.proxyPort=3128' java https://HOST/"},
	{name: "maven", needs: "maven.test:443", command: "maven https://HOST/maven", want: "41 files$"},
	{name: "gradle", needs: "maven.test:443", command: "gradle https://HOST/maven", want: "40 files$"},
	{name: "chromium", needs: "web.test:443", command: "browse 'https://HOST/page?id=1&other=OTHER'",
		want: "(?s)30 resources by h2$.*^websocket: a message$.*^neighbour: refused$"},

	{name: "server-first", needs: "mail.test:2525", command: "serverfirst HOST 2525", want: "^220 ready"},
	{name: "server-first-by-address", needs: "203.0.113.62:2525", command: "serverfirst 203.0.113.62 2525", want: "^220 ready",
		neighbour: "serverfirst 203.0.113.63 2525"},
	{name: "postgres", needs: "db.use.test:5432", command: "starttls HOST 5432", want: "^TLSv1"},
	{name: "mongodb-srv", needs: "cluster.use.test:2525 shard-0.cluster.use.test:2525", want: "(?s)authSource=admin.*220 ready",
		command: "dig +short TXT HOST; shard=$(dig +short SRV _mongodb._tcp.HOST | awk '{print $4}'); [ -n \"$shard\" ] && serverfirst $shard 2525"},

	{name: "glibc", needs: "web.test:7", command: "echotext HOST 7", want: "^web.test at"},
	{name: "glibc-ipv4-only", needs: "four.test:7", command: "echotext HOST 7", want: "^four.test at 203.0.113.21"},
	{name: "glibc-dead-ipv6", needs: "dead6.test:7", command: "echotext HOST 7", want: "^dead6.test at"},
	{name: "musl", needs: "web.test:7", command: "musl HOST 7", want: "^web.test at"},
	{name: "musl-ipv4-only", needs: "four.test:7", command: "musl HOST 7", want: "^four.test at 203.0.113.21"},
	{name: "c-ares", needs: "web.test:7", command: "cares HOST 7", want: "^web.test at"},
	{name: "c-ares-ipv4-only", needs: "four.test:7", command: "cares HOST 7", want: "^four.test at 203.0.113.21"},
	{name: "go-resolver", needs: "web.test:443", command: "use get https://HOST/", want: "^web.test at"},
	{name: "go-resolver-ipv4-only", needs: "four.test:443", command: "use get https://HOST/", want: "^four.test at"},
	{name: "ipv6-only", needs: "six.test:443", command: "curl -sS -m 20 https://HOST/", want: "^six.test at 2001:db8::22"},
	{name: "musl-ipv6-only", needs: "six.test:7", command: "musl HOST 7", want: "^six.test at 2001:db8::22"},
	{name: "alias-chain", needs: "chain.test:443", command: "curl -sS -m 20 https://HOST/", want: "^chain.test at"},
	{name: "many-addresses", needs: "many.test:7", command: "echotext HOST 7", want: "^many.test at"},
	{name: "rotating-addresses", needs: "rotate.test:7", command: "use rotate HOST 7 200", want: "(?s)^[0-9]{2,3} addresses.*ok"},
	{name: "lifetime-0", needs: "zero.test:7", command: "echotext HOST 7 2", want: "^zero.test at"},

	{name: "sibling-by-alias", needs: "database:2525", command: "serverfirst database 2525", want: "^220 ready", neighbour: "serverfirst other 2525"},
	{name: "sibling-other-port", needs: "database:2525", command: "serverfirst database 2525", want: "^220 ready", neighbour: "serverfirst database 2526"},
	{name: "host.docker.internal", needs: "host.docker.internal:8901", command: "echotext host.docker.internal 8901", want: "^host.docker.internal at",
		neighbour: "echotext host.docker.internal 8902"},
}
