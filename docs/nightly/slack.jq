# For an incoming webhook of Slack. The file slack.curl has one line, url = "https://hooks.slack.com/...", and mode 600:
#   nightly gate --format webhook | jq -f slack.jq | curl -sSf --json @- -K slack.curl
{text: (.text | gsub("&"; "&amp;") | gsub("<"; "&lt;") | gsub(">"; "&gt;"))}
